"""The process that makes candidates, times them, and computes their answers. It may crash without harm."""
