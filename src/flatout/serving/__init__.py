"""Packages answer over the network.

Protocol processes ("fronts") share the port: they parse requests, prepare rows and encode answers. One executor process
a device forms batches and runs them. Rows travel between them through shared memory.
"""
