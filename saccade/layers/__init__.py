"""Neural network layers that do not depend on a task: attention, blocks and stacks, vision, audio, losses.

Letters in tensor shapes: B batch size, S source length, T target length, Q and K number of queries and keys, H heads,
D model width, E head width, V vocabulary size. Masks are boolean; True means "may be attended" or "is not padding".
"""
