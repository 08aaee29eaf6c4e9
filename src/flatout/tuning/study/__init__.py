"""A study: what was asked, what was trained, and what came of it, in a folder that only grows."""
