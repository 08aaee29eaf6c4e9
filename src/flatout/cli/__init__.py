"""The command line: arguments, environment variables and printing are only here. `--help` does not import torch."""
