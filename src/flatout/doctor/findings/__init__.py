"""One file each: what it looks for, what it costs and what to do."""
