"""Forgetting: journals that are over leave a tombstone, long ones lose their oldest records."""
