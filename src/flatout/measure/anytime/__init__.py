"""Tests that may be looked at after every request and stay valid: e-processes and confidence sequences. Needs NumPy only."""
