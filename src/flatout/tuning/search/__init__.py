"""What a study trains next."""
