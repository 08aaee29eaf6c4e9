"""Keeps a trial's writes away from the user's files."""
