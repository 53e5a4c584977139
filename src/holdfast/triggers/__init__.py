"""Triggers: rules that turn an occurrence (a time, a file, a webhook, an event) into work, once."""

from __future__ import annotations

from holdfast.names import is_trigger_id
from holdfast.triggers.definition import TriggerOptions, cron, event, interval, watch, webhook

__all__ = ["TriggerOptions", "cron", "event", "interval", "is_trigger_id", "watch", "webhook"]
