"""The ladder of architectures: an ablation whose rungs are trained on the same data with the same budget."""
