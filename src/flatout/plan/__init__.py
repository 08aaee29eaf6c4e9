"""From what is asked to how it is done on this machine, with the reason for each setting."""
