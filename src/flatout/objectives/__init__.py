"""What a model is trained for: its loss, its metrics, the check of its output, the decoding of predictions."""
