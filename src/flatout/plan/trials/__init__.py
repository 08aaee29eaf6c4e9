"""The arms of a trial: one set of settings each, from one saved state, on the same batches."""
