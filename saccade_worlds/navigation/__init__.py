"""Instructions in a known map: worlds, routes, the writer of actions, its predictor and its scores."""
