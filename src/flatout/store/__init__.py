"""The run folder and what lies in it. Tensors are safetensors, the rest JSON; nothing is pickled."""
