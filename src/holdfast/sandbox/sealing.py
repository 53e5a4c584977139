"""Sealed snapshots of programs. Pure.

A snapshot is a cache: a damaged one, or one of another program, other results or another version of the sandbox, is not
opened, and the program is replayed. The sandbox itself does not notice a changed bit, so only sealed snapshots reach
it.
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
"""Largest snapshot, in bytes of the sandbox."""


class SnapshotPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The program and the position at which a snapshot was taken."""

    program: str
    """Digest of the source, its variables and its seed."""
    sandbox: str
    """The sandbox and its version."""
    ordinal: int
    """The number of the next call."""
    given: int
    """Number of results that the program had."""
    chain: str
    """Digest of these results, in order."""
    waiting: dict[int, HostCall]
    """Calls without an answer, by the sandbox's own number."""
    printed: str


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    place: SnapshotPosition
    size: int
    state: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Sealed)


def seal(key: bytes, place: SnapshotPosition, state: bytes) -> bytes | None:
    """A snapshot that only the holder of `key` can make; None if it is too large."""
    if len(state) > MAX_SNAPSHOT:
        return None
    body = _encoder.encode(_Sealed(place, len(state), zlib.compress(state, 1)))
    return _MAGIC + _mac(key, body) + body


def unseal(key: bytes, snapshot: bytes) -> tuple[SnapshotPosition, bytes] | None:
    """The contents of a snapshot sealed with `key`, or None."""
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
    """The key for snapshots, derived from a secret of the store."""
    return hmac.digest(secret, b"holdfast:1:program-snapshot", hashlib.sha256)


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, _MAGIC + body, hashlib.sha256)
