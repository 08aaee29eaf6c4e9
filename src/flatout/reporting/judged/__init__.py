"""Pictures of how well a model does on held-out rows: what it confuses, how sure it is, where it is worst."""
