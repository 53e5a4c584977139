"""The gate of a store: what each agent takes in, for processes that do not know it, and what was refused."""
