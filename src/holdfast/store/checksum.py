"""The checksum that every stored record carries.

It covers the journal's id, the place, the epoch and the bytes: a record that was altered, or that turns up in another
place than its own, does not match. SQLite's own integrity check looks at none of this.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

_place = Struct("<qq").pack


def salt_of(journal: str) -> int:
    """What makes the checksums of one journal differ from those of another."""
    return crc32(journal.encode())


def checksum(salt: int, seq: int, epoch: int, body: bytes) -> int:
    """The checksum of a record in its place."""
    return crc32(body, crc32(_place(seq, epoch), salt))


def sound(salt: int, seq: object, epoch: object, body: object, crc: object) -> bool:
    """Whether a stored record matches its checksum. A damaged file may give anything, also nothing."""
    if type(seq) is not int or type(epoch) is not int or type(body) is not bytes:
        return False
    return crc32(body, crc32(_place(seq, epoch), salt)) == crc  # not `checksum`: a call for each record read
