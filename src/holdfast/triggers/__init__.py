"""Triggers: rules that turn an occurrence (a time, a file, a webhook, an event) into work, once."""

from holdfast.triggers.definition import TriggerOptions, is_trigger_id
from holdfast.triggers.sources import cron, event, interval, watch, webhook

__all__ = ["TriggerOptions", "cron", "event", "interval", "is_trigger_id", "watch", "webhook"]
