"""Columns that a recipe makes of others: a small expression language, parsed and checked, and never run as Python."""
