"""Random changes of images on the device, keyed for each sample."""
