"""Data from torch Datasets, map-style or iterable, read by worker processes."""
