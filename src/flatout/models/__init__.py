"""Models that come with flatout, and how any other model is built, described, loaded and frozen."""
