"""Random changes of images on the device, each sample by its own key."""
