"""Networks written out from the formulas of their papers, in float64, for checks to compare saccade's models with.

Only parameters are read from saccade's modules, by name, so the type of a module is Any here. None of the layers' code
runs in basics.py, recurrent.py, transformer.py and vision.py, so a mistake in a layer cannot hide itself. What a model
is (its cell, norms, epsilons, masks, order of sublayers) is said by the check and not asked of the model; comparing.py
runs the models and compares. B batch, S and T source and target length, D width, H heads of width E, V vocabulary;
`...` are any axes before them, so most functions take one sequence as well as a batch.
"""
