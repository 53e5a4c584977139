"""Editing a text in $VISUAL or $EDITOR."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.options import CallInvalid
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator


class TextLeft(UsageError):
    """The text that a person wrote could not be used. It is still in the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{reason}; your text is in {path}")
        self.path = path
        self.reason = reason


class Draft:
    """A text in a temporary file, to be edited as often as it takes."""

    def __init__(self, name: str, text: str) -> None:
        self._editor = editor_command()
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self._text = text
        self.file = self._folder / name
        self.file.write_bytes(text.encode())

    def edit(self, *, may_fail: bool = False) -> str:
        """Run the editor, and return the text. Raises `TextLeft` if the editor failed.

        With `may_fail` an editor may fail if it left the text unchanged.
        """
        with _without_interrupts():
            code = subprocess.run([*self._editor, str(self.file)], check=False).returncode  # noqa: S603  their own editor
        try:
            text = self.file.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise self.left(f"what the editor left can't be read as UTF-8 text ({error})") from error
        if code and not (may_fail and text == self._text):
            raise self.left(f"the editor ended with code {code}, so nothing was done")
        return text

    def left(self, reason: str) -> TextLeft:
        """The error for a text that is not used."""
        return TextLeft(self.file, reason)

    def remove(self) -> None:
        """Delete the file."""
        shutil.rmtree(self._folder, ignore_errors=True)


def editor_command() -> list[str]:
    """The command of the user's editor; `CallInvalid` if there is none."""
    given = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        command = shlex.split(given)
    except ValueError as error:
        raise CallInvalid(f"$VISUAL or $EDITOR is no command: {error}") from None
    if not command or shutil.which(command[0]) is None:
        raise CallInvalid(f"there is no editor {given!r}; set $EDITOR to one")
    return command


@contextmanager
def _without_interrupts() -> Generator[None]:
    """Leave Ctrl-C to the editor. It would inherit SIG_IGN, but does not inherit a handler."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
