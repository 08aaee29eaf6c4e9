"""Conformance suites for parts that others write. Subclass one in your tests."""
