"""A text in the editor of whoever calls. What a person wrote is kept until somebody has done something with it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.cli.failures import CallInvalid
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator

_USUAL: Final = "vi"


class TextLeft(UsageError):
    """What a person wrote could not be used. It is still in the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{reason}; your text is in {path}")
        self.path = path
        self.reason = reason


class Draft:
    """A text in a file of its own, to be edited as often as it takes."""

    def __init__(self, name: str, text: str) -> None:
        self._editor = editor_command()
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.file = self._folder / name
        self.file.write_bytes(text.encode())

    def edit(self) -> str:
        """Let the person edit it; answers the text."""
        with _undisturbed():
            code = subprocess.run([*self._editor, str(self.file)], check=False).returncode  # noqa: S603  their own editor
        if code:
            raise self.left(f"the editor ended with code {code}, so nothing was done")
        try:
            return self.file.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise self.left(f"what the editor left can't be read as UTF-8 text ({error})") from error

    def left(self, reason: str) -> TextLeft:
        """The error that says why the text was not used, and where it is."""
        return TextLeft(self.file, reason)

    def done(self) -> None:
        """The text is needed no more."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _undisturbed() -> Generator[None]:
    """Ctrl-C is for the editor. A handler, other than being ignored, is not inherited by it."""

    def nothing(_number: int, _frame: object) -> None:
        return

    before = signal.signal(signal.SIGINT, nothing)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def editor_command() -> list[str]:
    """The editor of whoever calls, as a command; an error where there is none."""
    given = os.environ.get("VISUAL") or os.environ.get("EDITOR") or _USUAL
    try:
        command = shlex.split(given)
    except ValueError as error:
        message = f"$VISUAL or $EDITOR is no command: {error}"
        raise CallInvalid(message) from None
    if not command or shutil.which(command[0]) is None:
        message = f"there is no editor {given!r}; set $EDITOR to one"
        raise CallInvalid(message)
    return command
