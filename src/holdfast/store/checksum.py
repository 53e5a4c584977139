"""The checksum that every stored record carries.

It covers the journal's id, the place, the epoch and the bytes: a record that was altered, or that turns up in another
place than its own, does not match. SQLite's own integrity check looks at none of this.
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
    """What makes the checksums of one journal differ from those of another."""
    return crc32(journal.encode())


def checksum(salt: int, seq: int, epoch: int, body: bytes) -> int:
    """The checksum of a record in its place."""
    return crc32(body, crc32(pack_place(seq, epoch), salt))


def sound(salt: int, seq: object, epoch: object, body: object, crc: object) -> bool:
    """Whether a stored record matches its checksum. A damaged file may give anything, also nothing."""
    if type(seq) is not int or type(epoch) is not int or type(body) is not bytes:
        return False
    return crc32(body, crc32(pack_place(seq, epoch), salt)) == crc  # not `checksum`: a call for each record read


KEY_BYTES: Final = 32
_SEAL_BYTES: Final = 16
_encode: Final = msgspec.msgpack.Encoder().encode


class Seal:
    """Makes and checks the seals of one store."""

    __slots__ = ("_key", "_rows", "check")

    def __init__(self, key: bytes, store_id: bytes) -> None:
        self._key = blake2b(store_id, key=key, person=b"holdfast:store", digest_size=KEY_BYTES).digest()
        self._rows = self._derived(b"rows")
        self.check: Final = self._derived(b"check")
        """What the store keeps to tell whether a key is its own."""

    def _derived(self, purpose: bytes) -> bytes:
        return blake2b(purpose, key=self._key, person=b"holdfast:derive", digest_size=KEY_BYTES).digest()

    def token_key(self, covered: bytes | None) -> bytes:
        """The key of wait tokens: that of an older schema if the store has one, which is kept `covered`."""
        return self._derived(b"tokens") if covered is None else self.cover(covered)

    def cover(self, secret: bytes) -> bytes:
        """The token key of an older schema as the store may keep it; the same again uncovers it."""
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
        """Whether a wait is as Holdfast wrote it."""
        return isinstance(mac, bytes) and compare_digest(self.of_wait(wait), mac)

    def matches_rule(self, rule: StoredRule, mac: object) -> bool:
        """Whether a stored rule is as Holdfast wrote it."""
        return isinstance(mac, bytes) and compare_digest(self.of_rule(rule), mac)


def blob_digest(body: bytes) -> str:
    """The digest under which bytes are stored: plain SHA-256, so that other programs can check it."""
    return hashlib.sha256(body).hexdigest()


def input_digest(body: bytes) -> str:
    """The digest that tells whether two inputs under one key are the same."""
    return digest_of_bytes("input", body)


def sound_input(found: InputRow) -> bool:
    """Whether an input is what was accepted. What was said in one that was admitted may have been forgotten."""
    if not found.body and not found.pending:
        return True
    return input_digest(found.body) == found.digest


def trusted(body: bytes, *, sound: bool) -> Record | None:
    """The record, if its checksum was right and it can be read. One bad record must not stop a feed of all journals."""
    if not sound:
        return None
    try:
        return records.decode(body)
    except RecordUnreadable:
        return None
