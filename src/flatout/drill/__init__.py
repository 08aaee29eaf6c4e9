"""Kills a run at random, resumes it, and compares every bit of the result with an uninterrupted run."""
