"""What the data of a recipe is, how fast each stage of it goes on this machine, and what would make it faster."""
