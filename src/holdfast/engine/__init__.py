"""The engine: drives the journals of a store that have work."""
