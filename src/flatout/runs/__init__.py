"""A run from its recipe to its result, by one process or by many."""
