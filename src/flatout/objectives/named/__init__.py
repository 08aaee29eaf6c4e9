"""Metrics that a recipe asks for by name, in addition to those of its objective."""
