"""Image files to pixels: reading headers, and decoders."""
