"""Which row comes at which position, and how numbers are drawn: pure functions of a seed."""
