"""Knobs: one small file per setting. Each has its default with the reason, other values to try, and rules for trials."""
