"""Conformance suites for parts that others write. Subclass one in a test of your own."""
