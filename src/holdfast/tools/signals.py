"""What a tool raises to say more than that it failed."""

from __future__ import annotations


class ToolRetry(Exception):
    """Raised by a tool to ask the model for better arguments. The model reads the message as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotDone(Exception):
    """Raised by a `reconcile` function: the interrupted call had no effect, so it is safe to perform it now."""
