"""How one model is trained by many processes."""
