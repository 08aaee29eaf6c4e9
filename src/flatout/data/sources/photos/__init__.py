"""Photos: finding files, decoding them small, and cropping them to one size on the device."""
