"""Observes a script while it trains."""
