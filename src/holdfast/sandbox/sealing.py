"""Snapshots under a seal. Pure.

A snapshot is a cache: one that is damaged, of another program, of other results or of another version of the sandbox is
not opened, and the program is replayed. The sandbox itself does not notice a changed bit, so nothing without a seal
reaches it.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from typing import Final

import msgspec

from holdfast.sandbox.contract import HostCall  # noqa: TC001  msgspec reads it

_MAGIC: Final = b"hfps1\n"
_MAC: Final = 32
_PREFIX: Final = len(_MAGIC) + _MAC
MAX_SNAPSHOT: Final = 16 * 2**20
"""Largest snapshot that is made or opened, as the sandbox writes it."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where in which program a snapshot was taken."""

    program: str
    """Digest of the source, its variables and its seed."""
    sandbox: str
    """The sandbox and its version."""
    ordinal: int
    """The number of the next call."""
    given: int
    """How many results the program had been given."""
    chain: str
    """Digest of these results, in their order."""
    waiting: dict[int, HostCall]
    """Calls without an answer, by the sandbox's own number."""
    printed: str


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    place: Place
    size: int
    state: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Sealed)


def seal(key: bytes, place: Place, state: bytes) -> bytes | None:
    """A snapshot that only the holder of `key` can make; None for one that is too large to be worth it."""
    if len(state) > MAX_SNAPSHOT:
        return None
    body = _encoder.encode(_Sealed(place, len(state), zlib.compress(state, 1)))
    return _MAGIC + _mac(key, body) + body


def unseal(key: bytes, snapshot: bytes) -> tuple[Place, bytes] | None:
    """What was sealed with `key`, or None."""
    body = snapshot[_PREFIX:]
    if not snapshot.startswith(_MAGIC) or not hmac.compare_digest(snapshot[len(_MAGIC) : _PREFIX], _mac(key, body)):
        return None
    try:
        opened = _decoder.decode(body)
        state = zlib.decompressobj().decompress(opened.state, MAX_SNAPSHOT)
    except (msgspec.DecodeError, zlib.error):  # sealed by another release, under the same key
        return None
    return (opened.place, state) if len(state) == opened.size else None


def snapshot_key(secret: bytes) -> bytes:
    """The key for snapshots, from a secret of the store that may serve other ends as well."""
    return hmac.digest(secret, b"holdfast:1:program-snapshot", hashlib.sha256)


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, _MAGIC + body, hashlib.sha256)
