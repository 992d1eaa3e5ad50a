"""The ladder of architectures: each rung trained on the same data with the same budget, and compared."""
