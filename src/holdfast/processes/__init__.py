"""Durable functions and background calls: journals that are driven to an end."""
