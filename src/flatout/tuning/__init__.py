"""Hyperparameter search: the space, and what to train next in it."""
