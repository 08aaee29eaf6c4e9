"""What can be changed about a model, one small module each."""
