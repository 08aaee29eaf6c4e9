"""One remedy per file: when it is worth a trial, how to apply it from outside, and how to write it into the script."""
