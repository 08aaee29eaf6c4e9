"""Memory and speed of a model on many devices, for each parallel layout: calculated, without the devices."""
