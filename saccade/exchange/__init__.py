"""Weights in and out: folders of Hugging Face become runs, and runs such folders."""
