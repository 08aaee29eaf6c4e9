"""Training on many machines: Kubernetes manifests, Ray, and local processes."""
