"""The runtime: one open store with the agents that may run on it."""
