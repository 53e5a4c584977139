"""A text without secrets while it comes in pieces. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.secrets.spans import marker

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.secrets.known import Known


class RedactedStream:
    """Shows the pieces of one text, and holds back what may be the beginning of a secret.

    It never holds back more than the longest form of a secret, and nothing of a text that does not end like one begins.
    """

    __slots__ = ("_covered", "_held", "_known")

    def __init__(self, known: Callable[[], Known | None]) -> None:
        self._known = known
        self._held = ""
        self._covered = 0
        """So many characters of what is held have had their marker already."""

    def feed(self, piece: str) -> str:
        """What may be shown now that this piece has come."""
        known = self._known()
        if known is None:
            return piece
        text = self._held + piece
        return self._show(known, text, known.begun(text))

    def end(self) -> str:
        """What was held back: nothing more comes."""
        known = self._known()
        return "" if known is None else self._show(known, self._held, len(self._held))

    def _show(self, known: Known, text: str, safe: int) -> str:
        """The text up to `safe`, where a secret may begin. One that reaches beyond is hidden as far as it reaches."""
        shown: list[str] = []
        at = self._covered
        for span in known.spans(text):
            if span.start >= safe:
                break
            if span.start >= at:
                shown += (text[at : span.start], marker(span.name))
            at = max(at, span.end)
        if at < safe:
            shown.append(text[at:safe])
        self._held = text[safe:]
        self._covered = max(at - safe, 0)
        return "".join(shown)
