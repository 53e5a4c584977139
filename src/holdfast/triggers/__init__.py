"""Triggers: rules that turn an occurrence (a time, a file, a webhook, an event) into work, once."""
