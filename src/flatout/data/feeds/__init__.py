"""Batches to a loop: on the device already, or read ahead by threads and copied there; and the loader alone."""
