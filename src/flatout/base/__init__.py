"""Errors, units, specs, budgets, events, and the tree that every view is rendered from. No torch."""
