"""`shrink`: a smaller and faster package of the same model, only if it is both on this machine and as accurate."""
