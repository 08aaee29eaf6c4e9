"""Which row comes at which position, and random numbers, as pure functions of a seed."""
