"""A first recipe for files that nobody has described yet: what is in them, and choices that run as they are."""
