"""Processes that read samples for the one that trains: how they start, are spoken to, watched, and end."""
