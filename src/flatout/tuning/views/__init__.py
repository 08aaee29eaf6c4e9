"""A study as text, JSON and a page: one tree, made from its folder alone."""
