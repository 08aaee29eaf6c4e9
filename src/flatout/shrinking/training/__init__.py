"""Smaller models that have to be trained: narrower by pruning, or a narrower twin that learns from the run's model."""
