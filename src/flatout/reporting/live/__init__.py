"""The live page: the page of a run, or of all runs below a folder, kept up to date over server-sent events."""
