"""What is seen of a script while it trains."""
