"""`Envelope`: an effect as a value, with its scope, subject, key, command and cause."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.effects.canonical import canonical, digest, digest_of_bytes
from holdfast.errors import InvalidId
from holdfast.names import check_choice, check_id
from holdfast.records import ABSENT, EFFECT_KINDS, Cause, EffectKind, EffectRequest

MAX_KEY = 2_048
"""Longest replay key, which bounds the nesting of effects."""
MAX_ASK_BODY = 8 * 1024
"""A larger command is recorded by its digest alone."""


class RunScope(msgspec.Struct, frozen=True):
    """The journal, the run in it, and the iteration of the run."""

    journal: str
    run: str
    iteration: int | None = None


class EffectSubject(msgspec.Struct, frozen=True):
    """The id of the effect and its kind."""

    effect: str
    kind: EffectKind


class EffectCommand(msgspec.Struct, frozen=True):
    """The request: its target, and its content as a JSON value."""

    target: str
    body: Any = None


class Envelope(msgspec.Struct, frozen=True):
    """One effect, fully serialisable. A replay compares two digests.

    *identity* (kind, key, target) must always match. *content* (the body of the command) must match too, except for
    kinds that keep their recorded outcome.
    """

    scope: RunScope
    subject: EffectSubject
    key: str
    command: EffectCommand
    cause: Cause | None = None

    def __post_init__(self) -> None:
        check_id("journal id", self.scope.journal)
        check_id("run", self.scope.run)
        check_id("effect id", self.subject.effect)
        check_key(self.key)
        check_id("target", self.command.target)
        check_choice("effect kind", self.subject.kind, EFFECT_KINDS)

    def identity(self) -> str:
        """The digest that must match on replay."""
        return identity(self.subject.kind, self.key, self.command.target)

    def ask(self) -> EffectRequest:
        """The part of this envelope that the journal records."""
        body, step = canonical(self.command.body), self.scope.iteration or 0
        return make_request(self.subject.kind, self.command.target, body, self.cause, step)


def make_request(kind: EffectKind, target: str, body: bytes, cause: Cause | None, iteration: int) -> EffectRequest:
    """The recorded request of an effect with the canonical JSON `body`; of a large one only the digest."""
    shown = ABSENT if len(body) > MAX_ASK_BODY else msgspec.Raw(body)
    return EffectRequest(kind, target, digest_of_bytes("content", body), shown, cause=cause, iteration=iteration)


def identity(kind: EffectKind, key: str, target: str) -> str:
    """The identity digest of an effect."""
    return digest("identity", [kind, key, target])


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
