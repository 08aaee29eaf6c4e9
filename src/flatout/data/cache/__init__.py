"""Rows kept as they are first read: in memory, or in a cache on disk that outlives the run."""
