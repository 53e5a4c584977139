"""What the mirror knows of itself, as it stands in a small file in the folder. Pure."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from holdfast.errors import InvalidId
from holdfast.memory.deciding import Base, Copy
from holdfast.names import check_name

NAME: Final = ".holdfast-index.json"
MAX_BYTES: Final = 256 * 1024 * 1024
_FORMAT: Final = 1

Place: TypeAlias = tuple[str, str]
"""A scope and a key."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    scope: str
    key: str
    mirrored: tuple[int, str, str] | None
    writing: tuple[int, str, str] | None


class _Index(msgspec.Struct, frozen=True):
    format: int
    store: str
    rows: list[_Row]


def encode_index(store: str, bases: dict[Place, Base]) -> bytes:
    """The file."""
    rows = [_Row(*place, _plain(base.mirrored), _plain(base.writing)) for place, base in sorted(bases.items())]
    return msgspec.json.encode(_Index(_FORMAT, store, rows))


def decode_index(store: str, data: bytes) -> dict[Place, Base] | None:
    """What was known; None where the file says nothing that can be trusted for this store."""
    try:
        found = msgspec.json.decode(data, type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if found.format != _FORMAT or found.store != store:
        return None
    rows = [row for row in found.rows if _is_name(row.scope) and _is_name(row.key)]
    return {(row.scope, row.key): Base(_copy(row.mirrored), _copy(row.writing)) for row in rows}


def _is_name(name: str) -> bool:
    """Whether it can be one: what stands in the folder may be written by anybody."""
    try:
        check_name("name", name)
    except InvalidId:
        return False
    return True


def _plain(copy: Copy | None) -> tuple[int, str, str] | None:
    return None if copy is None else (copy.version, copy.value, copy.file)


def _copy(row: tuple[int, str, str] | None) -> Copy | None:
    return None if row is None else Copy(*row)
