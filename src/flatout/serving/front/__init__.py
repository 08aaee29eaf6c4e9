"""One protocol process: connections in, requests to the executors, answers out. `FrontApp` is the way in."""
