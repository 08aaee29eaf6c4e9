"""Can the model learn one batch by heart? If not, which part of it can not learn."""
