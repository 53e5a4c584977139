"""Whether the words of an error say that a conversation is too long for the model, whoever says them. Pure."""

from __future__ import annotations

import re
from typing import Final

_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|context[ _](?:length|window|size|limit)"
    r"|maximum (?:context|prompt|model) length|exceeds? (?:the )?max(?:imum)? length|range of input length should be"
    r"|(?:prompt|input|request|conversation) is too long|prompt too long"
    r"|too many (?:input )?tokens|exceeded model token limit"
    r"|input (?:length|tokens?).{0,24}exceed|token count.{0,80}exceeds|exceeds? the (?:maximum|model).{0,40}tokens"
    r"|tokens.{0,24}must be <=|must have less than \d+ tokens"
    r"|reduce the length|reduce your message size|request too large for model",
    re.IGNORECASE,
)


def too_long(words: str) -> bool:
    """Whether somebody says so. Where a status says that time helps, these words are about a minute instead."""
    return _TOO_LONG.search(words) is not None
