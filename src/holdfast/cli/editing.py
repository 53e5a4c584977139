"""`holdfast memory edit`: an entry in the editor of whoever calls. What a person wrote is never thrown away."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.editor import editor_command
from holdfast.cli.failures import FAILED
from holdfast.cli.remembering import AUTHOR, remembering
from holdfast.cli.terminal import stderr, stdout
from holdfast.errors import MemoryConflict, UsageError
from holdfast.memory import Memory
from holdfast.memory.deciding import digest_of
from holdfast.memory.filenames import SUFFIX, conflict_key, written_name

if TYPE_CHECKING:
    from holdfast.store import Remembered


class EditLeft(UsageError):
    """What a person wrote could not be stored. It is still in the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{reason}; your text is in {path}")
        self.path = path
        self.reason = reason


async def edit(path: Path, scope: str, key: str) -> int:
    """Let a person edit an entry, and write what it becomes."""
    editor = editor_command()
    async with remembering(path) as store:
        before = await Memory(store, scope).get(key)
        await store.memory_history(scope, key, 1)  # a key that can't be one is told before anybody writes
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    file = folder / f"{written_name(key)}{SUFFIX}"
    old = "" if before is None else before.value
    file.write_bytes(old.encode())
    # The store is not kept open meanwhile: a person may take days.
    code = await _run(editor, file)
    try:
        text = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise EditLeft(file, f"what the editor left can't be read as UTF-8 text ({error})") from error
    if text == old:
        shutil.rmtree(folder)
        stdout().line("nothing was changed")
        return 0
    if code:
        raise EditLeft(file, f"the editor ended with code {code}, so nothing was stored")
    try:
        said, result = await _store(path, scope, key, before, text)
    except BaseException:
        stderr().line(f"holdfast: your text is in {file}")
        raise
    shutil.rmtree(folder)
    stdout().line(said)
    return result


async def _run(editor: list[str], file: Path) -> int:
    process = await asyncio.create_subprocess_exec(*editor, str(file))
    return await process.wait()


async def _store(path: Path, scope: str, key: str, before: Remembered | None, text: str) -> tuple[str, int]:
    """Write the text; if the entry was changed meanwhile, as an entry of its own. Answers what to say, and the code."""
    async with remembering(path, writes=True) as store:
        memory = Memory(store, scope, by=AUTHOR)
        while True:
            try:
                if before is None:
                    entry = await memory.put(key, text, expected=0)
                else:
                    entry = await memory.rewrite(before, text)
            except MemoryConflict as conflict:
                if conflict.current == 0:
                    before = None  # it was removed: an edit counts more
                    continue
                return await _keep_beside(memory, key, conflict.current, text)
            return f"{scope}/{key} is at version {entry.version}", 0


async def _keep_beside(memory: Memory, key: str, version: int, text: str) -> tuple[str, int]:
    current = await memory.get(key)
    if current is not None and current.value == text:
        return f"{memory.scope}/{key} is at version {current.version}: somebody wrote the same", 0
    taken: set[str] = set()
    async for entry in memory.entries(damaged=taken.add):
        taken.add(entry.key)
    beside = conflict_key(key, version, digest_of(text.encode()), taken)
    await memory.put(beside, text, expected=0)
    said = f"{key!r} was changed meanwhile and is at version {version}; your text is kept as {memory.scope}/{beside}"
    return said, FAILED
