"""What a model is trained for: loss, metrics, checks of its output, and decoding of predictions."""
