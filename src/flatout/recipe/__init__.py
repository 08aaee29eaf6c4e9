"""The recipe: its schema, how it is read from a file, and how it is built into checked parts."""
