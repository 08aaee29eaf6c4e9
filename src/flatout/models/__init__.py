"""flatout's built-in models, and how any other model is built, described, loaded and frozen."""
