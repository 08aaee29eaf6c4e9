"""Smaller models that have to be trained: pruned, or a narrower or shallower twin that learns from the run's model."""
