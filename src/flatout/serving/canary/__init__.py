"""A new version beside the one that serves: who gets it, what is compared, and when it is promoted or rolled back."""
