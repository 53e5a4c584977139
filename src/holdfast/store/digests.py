"""How stored bytes are named by their content, and when they are trusted."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from holdfast import records
from holdfast.effects.canonical import digest_of_bytes
from holdfast.errors import RecordUnreadable

if TYPE_CHECKING:
    from holdfast.records import Record
    from holdfast.store.contract import InputRow


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
