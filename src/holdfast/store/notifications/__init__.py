"""Notifications: durable items for a session, delivered at a safe moment and acknowledged by the turn they entered."""
