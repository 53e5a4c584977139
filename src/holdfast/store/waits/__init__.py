"""Waits: one-shot durable promises, the only way anything suspends."""
