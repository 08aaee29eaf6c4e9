"""The bytes of an image file to pixels: what its header says, and who decodes it."""
