"""Many machines: what a cluster is handed, and what its machines run."""
