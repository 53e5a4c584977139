"""How stored bytes are named by their content."""

from __future__ import annotations

import hashlib

from holdfast.effects.canonical import digest_of_bytes


def blob_digest(body: bytes) -> str:
    """The digest under which bytes are stored: plain SHA-256, so that other programs can check it."""
    return hashlib.sha256(body).hexdigest()


def input_digest(body: bytes) -> str:
    """The digest that tells whether two inputs under one key are the same."""
    return digest_of_bytes("input", body)
