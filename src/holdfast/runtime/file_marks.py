"""Marks on files that a tainted call wrote, so that reading one of them taints the reader."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import MemoryFull
from holdfast.policy.conditions import paths_in, real_path
from holdfast.store.memories import TAINTED_FILES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.policy.rules import Subject
    from holdfast.store import Store


_WORKSPACE_KEY: Final = "workspace"
"""Key of the mark of the whole workspace, used when there are too many marks."""


class _FileMark(msgspec.Struct, frozen=True):
    path: str
    by: str


async def mark_written(store: Store, subject: Subject, by: str) -> None:
    """Mark the files that a call is about to write; `by` names the call and what tainted it."""
    for path in _paths(subject):
        scope, key = _scope(subject), _key(path)
        if await store.memory_get(scope, key) is not None:
            continue
        try:
            await store.memory_put(scope, key, _encoded(path, by))
        except MemoryFull:
            first = (await store.memory_list(scope))[0]
            await store.memory_delete(scope, first.key)
            await store.memory_put(scope, _WORKSPACE_KEY, _encoded(path, by))


async def writer_of(store: Store, subject: Subject) -> str | None:
    """The tainted record that wrote one of the files that a call reads; None if none did."""
    scope = _scope(subject)
    for path in _paths(subject):
        for key in (_key(path), _WORKSPACE_KEY):
            if (found := await store.memory_get(scope, key)) is not None:
                return _describe(found.value)
        if os.path.isdir(path) and (below := await _mark_below(store, scope, path)):  # noqa: PTH112, ASYNC240
            return below
    return None


async def _mark_below(store: Store, scope: str, folder: str) -> str | None:
    after = ""
    while page := await store.memory_list(scope, after=after):
        for entry in page:
            mark = _decoded(entry.value)
            if mark is None or mark.path.startswith(f"{folder.rstrip('/')}/"):
                return _describe(entry.value)
        after = page[-1].key
    return None


def _paths(subject: Subject) -> Iterator[str]:
    """The files and folders in the arguments of a call."""
    for name in subject.paths:
        for path in paths_in(subject.args.get(name)):
            try:
                yield real_path(path, subject.base)
            except (OSError, ValueError):  # the tool refuses it
                continue


def _scope(subject: Subject) -> str:
    return f"{TAINTED_FILES}{hashlib.sha256(os.fsencode(subject.base or '')).hexdigest()[:16]}"


def _key(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:40]


def _encoded(path: str, by: str) -> str:
    shown = path.encode("utf-8", "replace").decode()
    return msgspec.json.encode(_FileMark(shown, by)).decode()


def _decoded(value: str) -> _FileMark | None:
    try:
        return msgspec.json.decode(value, type=_FileMark)
    except msgspec.MsgspecError:
        return None


def _describe(value: str) -> str:
    mark = _decoded(value)
    return "a file that was marked as untrusted" if mark is None else f"the file {mark.path}, written by {mark.by}"
