"""The envelope of an effect: its key, which is a path, and its recorded request.

A replay finds an effect by its key. Kind and target of the request must match; a different content stops the run,
except for kinds that keep their recorded outcome.
"""

from __future__ import annotations

import msgspec

from holdfast.effects.canonical import digest_of_bytes
from holdfast.errors import InvalidId
from holdfast.records import ABSENT, Cause, EffectKind, EffectRequest

MAX_KEY = 2_048
"""Longest replay key, which bounds the nesting of effects."""
MAX_ASK_BODY = 8 * 1024
"""A larger command is recorded by its digest alone."""


def make_request(kind: EffectKind, target: str, body: bytes, cause: Cause | None, iteration: int) -> EffectRequest:
    """The recorded request of an effect with the canonical JSON `body`; of a large one only the digest."""
    shown = ABSENT if len(body) > MAX_ASK_BODY else msgspec.Raw(body)
    return EffectRequest(kind, target, digest_of_bytes("content", body), shown, cause=cause, iteration=iteration)


def check_key(key: str) -> str:
    """The replay key itself, or an `InvalidId`."""
    if type(key) is not str:
        raise InvalidId("replay key", key, f"it is a {type(key).__name__}, not a string")
    if not key or len(key) > MAX_KEY:
        raise InvalidId("replay key", key, f"it has {len(key):,} characters; 1 to {MAX_KEY:,} are allowed")
    return key


def segment(name: str, occurrence: int = 1) -> str:
    """`name` as one part of a key path; the second use of a name in a scope is ``name#2``."""
    escaped = name
    if not name.isalnum():
        escaped = name.replace("%", "%25").replace("/", "%2F").replace("#", "%23").replace("~", "%7E")
    return escaped if occurrence == 1 else f"{escaped}#{occurrence}"


def branch_segment(ordinal: int, name: str) -> str:
    """The part of a path for a branch; no escaped name can look like it."""
    return f"~{ordinal}.{name}"


def scope_of(key: str) -> str:
    """The path of the scope of a key."""
    return key.rpartition("/")[0]
