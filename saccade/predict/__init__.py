"""Inference: decoding (greedy, beam, sampling, mask-predict), its engines, and the predictors built on them."""
