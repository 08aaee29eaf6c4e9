"""Sends what a run logs to trackers: TensorBoard, MLflow, Weights & Biases, CSV, JSON lines. Each in a process of its own."""
