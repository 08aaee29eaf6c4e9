"""An open-loop load generator for any HTTP server. Servers of the Open Inference Protocol v2 say themselves what to send."""
