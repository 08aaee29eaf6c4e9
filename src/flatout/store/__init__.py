"""The run folder and its files. Tensors are safetensors, the rest is JSON; nothing is pickled."""
