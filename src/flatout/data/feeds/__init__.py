"""Batches for a training loop: picked on the device, or read ahead by threads and copied; and the public loader."""
