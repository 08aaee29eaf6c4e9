"""Arguments, environment variables and printing live here only. `--help` does not import torch."""
