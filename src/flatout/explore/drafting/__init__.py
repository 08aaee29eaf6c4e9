"""`flatout new`: looks into files and writes a first recipe for them that runs as it is."""
