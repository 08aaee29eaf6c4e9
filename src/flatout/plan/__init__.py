"""Turns a recipe into settings for this machine, with the reason for each."""
