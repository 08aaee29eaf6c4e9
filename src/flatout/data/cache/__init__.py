"""Keeps rows after they were first read: in memory, on the device, or on disk between runs."""
