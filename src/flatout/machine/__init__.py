"""Facts about this machine, its measured ceilings, advice on problems of its setup, and live meters."""
