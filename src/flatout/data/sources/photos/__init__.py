"""Photographs: files found and looked at, decoded small, and cut to one size on the device."""
