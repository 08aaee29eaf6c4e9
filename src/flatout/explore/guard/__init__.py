"""Faults of a table that training would not notice: each guard is a function from a look at the table to its findings."""
