"""Blocks that know no task.

Letters mean one thing everywhere: B batch, S source length, T target length, Q and K query and key length, H heads,
D model width, E head width, V vocabulary. A mask is boolean and True means "may be attended" or "is real".
"""
