"""What is asked: its schema, how it is read from a file, how it is built into checked parts."""
