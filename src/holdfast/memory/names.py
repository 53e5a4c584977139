"""Which file stands for which entry. Pure.

A key is the name of its file, without `.md`. Where that is longer than file systems take, or looks like one that was
shortened, it is shortened and ends in ``~`` and the beginning of its digest, so that no two keys share a file.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidId
from holdfast.names import MAX_NAME, check_name

if TYPE_CHECKING:
    from collections.abc import Container, Mapping


SUFFIX: Final = ".md"
OWN: Final = ".holdfast-"
"""What the names of our own files begin with. No key can begin with a dot."""
_CONFLICT: Final = ".conflict-"
_MAX_BYTES: Final = 240
_SHORTENED: Final = re.compile(r"~[0-9a-f]{16}\Z")


@dataclass(frozen=True, slots=True)
class Stray:
    """A file that stands for nothing; empty where nobody needs to be told why."""

    reason: str


def written_name(name: str) -> str:
    """A scope or a key as the name of a folder or a file, without suffix."""
    if len(name.encode()) <= _MAX_BYTES and not _SHORTENED.search(name):
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:16]
    head = name.encode()[: _MAX_BYTES - 17].decode("utf-8", "ignore")
    return f"{head}~{mark}"


def read_name(found: bytes, known: Mapping[str, str], suffix: str = SUFFIX) -> str | Stray:
    """The scope or key that a name on the disk stands for. `known` has the names that were shortened."""
    if found.startswith(b".") or (suffix and (found.endswith(b"~") or found[:1] == found[-1:] == b"#")):
        return Stray("")  # our own, or what editors leave
    try:
        name = found.decode()
    except UnicodeDecodeError:
        return Stray("its name is not UTF-8")
    if not name.endswith(suffix):
        return Stray(f"its name does not end in {suffix}")
    name = name.removesuffix(suffix)
    if name in known:
        return known[name]
    try:
        check_name("name", name)
    except InvalidId as error:
        return Stray(f"its name can't be a key: {error.reason}")
    return name if written_name(name) == name else Stray("its name looks shortened, and no entry has it")


def conflict_key(key: str, version: int, digest: str, taken: Container[str]) -> str:
    """A free key for a text that lost against `version` of an entry."""
    begin = f"{_CONFLICT}{version}"
    for end in (begin, f"{begin}-{digest[:8]}", f"{begin}-{digest[:32]}"):
        made = key[: MAX_NAME - len(end)].rstrip(" .") + end
        if made not in taken:
            break
    return made


def is_conflict_key(made: str, key: str) -> bool:
    """Whether `made` is a key for a text that lost against some version of the entry `key`."""
    head, mark, _ = made.rpartition(_CONFLICT)
    return bool(mark) and (head == key or (len(made) == MAX_NAME and key.startswith(head)))
