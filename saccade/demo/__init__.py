"""The whole way on embedded data: learn, score, predict, look."""
