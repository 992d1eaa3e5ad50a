"""Deliberate faults in saccade's own code, by name: a check is worth something if it fails under them."""
