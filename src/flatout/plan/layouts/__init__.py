"""What a model would need and take on many devices, laid out this way or that: calculated, with no device at hand."""
