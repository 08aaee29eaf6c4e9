"""`flatout data`: describes the data of a recipe, times each stage on this machine, and advises what would make it faster."""
