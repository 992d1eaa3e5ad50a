"""Estimate the cost of a recipe before training: parameters, FLOPs, memory, time, money."""
