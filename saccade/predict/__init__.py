"""A trained model and X give Y: search, filters, ensembles, and the predictor that puts them to use."""
