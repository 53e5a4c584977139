"""Replay keys: the path of an effect in its journal: run, effect, sub-step. Pure."""

from __future__ import annotations

from typing import Final

from holdfast.errors import InvalidId

MAX_KEY: Final = 2_048
"""Longest replay key; it bounds the nesting of effects."""


def check_key(key: str) -> str:
    """Check a replay key; raises `InvalidId`."""
    if type(key) is not str:
        raise InvalidId("replay key", key, f"it is a {type(key).__name__}, not a string")
    if not key or len(key) > MAX_KEY:
        raise InvalidId("replay key", key, f"it has {len(key):,} characters; 1 to {MAX_KEY:,} are allowed")
    return key


def segment(name: str, occurrence: int = 1) -> str:
    """`name` as one part of a key path; its second use in a scope is ``name#2``."""
    escaped = name
    if not name.isalnum():
        escaped = name.replace("%", "%25").replace("/", "%2F").replace("#", "%23").replace("~", "%7E")
    return escaped if occurrence == 1 else f"{escaped}#{occurrence}"


def branch_segment(ordinal: int, name: str) -> str:
    """The path part of a branch, distinct from all escaped names."""
    return f"~{ordinal}.{name}"


def scope_of(key: str) -> str:
    """The path of the scope of a key."""
    return key.rpartition("/")[0]
