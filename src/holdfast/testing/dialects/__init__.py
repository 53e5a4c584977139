"""The four dialects as a provider speaks them: what a request asks for, and a reply or an error on the wire. Pure.

This is the other side of `holdfast.models`, written apart from it: neither could hide a mistake of the other.
"""

from __future__ import annotations

from holdfast.testing.dialects.asking import Asked, DialectName, Form, asked, dialect_of
from holdfast.testing.dialects.cutting import Said, said, words_of
from holdfast.testing.dialects.failing import bad_frame, error_body, error_frame
from holdfast.testing.dialects.voices import Streamed, Voice, streamed, whole

__all__ = [
    "Asked",
    "DialectName",
    "Form",
    "Said",
    "Streamed",
    "Voice",
    "asked",
    "bad_frame",
    "dialect_of",
    "error_body",
    "error_frame",
    "said",
    "streamed",
    "whole",
    "words_of",
]
