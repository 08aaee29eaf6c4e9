"""What this machine is, what it can do when measured, what is mis-set on it, and its live meters."""
