"""Demonstrations on embedded data: train, evaluate, predict, view attention."""
