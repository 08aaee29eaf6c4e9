"""One finding per file: how to detect it, its cost and its fix."""
