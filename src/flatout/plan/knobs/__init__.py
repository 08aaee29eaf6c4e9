"""Knobs: one small file each. What it is by default and why, what else it could be, and what a trial of that has to show."""
