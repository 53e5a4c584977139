"""Checksums of records, seals of waits and rules, and digests of blobs and inputs.

The checksum of a record covers the id of its journal, its sequence, its epoch and its bytes: an altered or misplaced
record does not match. SQLite's own integrity check covers none of this.
"""

from __future__ import annotations

import hashlib
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgspec

from holdfast import records
from holdfast.effects.canonical import digest_of_bytes
from holdfast.errors import RecordUnreadable

if TYPE_CHECKING:
    from holdfast.records import Record
    from holdfast.store.contract import InputRow, Wait
    from holdfast.store.rules import StoredRule


pack_place: Final = Struct("<qq").pack


def salt_of(journal: str) -> int:
    """The start value of the checksums of a journal."""
    return crc32(journal.encode())


def checksum(salt: int, seq: int, epoch: int, body: bytes) -> int:
    """The checksum of a record."""
    return crc32(body, crc32(pack_place(seq, epoch), salt))


def sound(salt: int, seq: object, epoch: object, body: object, crc: object) -> bool:
    """True if a stored record matches its checksum. A damaged file can hold any type."""
    if type(seq) is not int or type(epoch) is not int or type(body) is not bytes:
        return False
    return crc32(body, crc32(pack_place(seq, epoch), salt)) == crc  # not `checksum`: a call for each record read


KEY_BYTES: Final = 32
_SEAL_BYTES: Final = 16
_encode: Final = msgspec.msgpack.Encoder().encode


class Seal:
    """Makes and checks the seals (keyed digests) of one store."""

    __slots__ = ("_key", "_rows", "check")

    def __init__(self, key: bytes, store_id: bytes) -> None:
        self._key = blake2b(store_id, key=key, person=b"holdfast:store", digest_size=KEY_BYTES).digest()
        self._rows = self._derived(b"rows")
        self.check: Final = self._derived(b"check")
        """Stored to recognise the right key."""

    def _derived(self, purpose: bytes) -> bytes:
        return blake2b(purpose, key=self._key, person=b"holdfast:derive", digest_size=KEY_BYTES).digest()

    def token_key(self, covered: bytes | None) -> bytes:
        """The key of wait tokens; a store of an older schema keeps its first one `covered`."""
        return self._derived(b"tokens") if covered is None else self.cover(covered)

    def cover(self, secret: bytes) -> bytes:
        """Encrypt the token key of an older schema for the store; the same call decrypts it."""
        return bytes(one ^ other for one, other in zip(secret, self._derived(b"cover"), strict=True))

    def of_wait(self, wait: Wait) -> bytes:
        """The seal of a wait."""
        said = ("wait", wait.journal, wait.name, wait.state, wait.deadline, wait.payload, wait.opened, wait.kind)
        return self._of((*said, wait.body, wait.at, wait.consumed))

    def of_rule(self, rule: StoredRule) -> bytes:
        """The seal of a stored rule."""
        said = ("rule", rule.id, rule.agent, rule.body, rule.digest, rule.by, rule.at)
        return self._of((*said, rule.removed_by, rule.removed_at))

    def _of(self, said: tuple[object, ...]) -> bytes:
        return blake2b(_encode(said), key=self._rows, digest_size=_SEAL_BYTES).digest()

    def matches_wait(self, wait: Wait, mac: object) -> bool:
        """True if Holdfast wrote this wait."""
        return isinstance(mac, bytes) and compare_digest(self.of_wait(wait), mac)

    def matches_rule(self, rule: StoredRule, mac: object) -> bool:
        """True if Holdfast wrote this rule."""
        return isinstance(mac, bytes) and compare_digest(self.of_rule(rule), mac)


def blob_digest(body: bytes) -> str:
    """The digest of a blob: plain SHA-256, so that other programs can check it."""
    return hashlib.sha256(body).hexdigest()


def input_digest(body: bytes) -> str:
    """The digest that compares two inputs under one key."""
    return digest_of_bytes("input", body)


def sound_input(found: InputRow) -> bool:
    """True if an input matches its digest. An admitted input may have been emptied."""
    if not found.body and not found.pending:
        return True
    return input_digest(found.body) == found.digest


def trusted(body: bytes, *, sound: bool) -> Record | None:
    """The record, or None if it is damaged: one bad record must not stop the feed."""
    if not sound:
        return None
    try:
        return records.decode(body)
    except RecordUnreadable:
        return None
