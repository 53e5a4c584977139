"""Where a path really leads, links followed. This looks at the disk; everything else about policies does not."""

from __future__ import annotations

import os


def real_path(path: str, base: str | None) -> str:
    """The real path of `path`, which begins at `base` unless it is absolute. What is not there yet is fine.

    Raises OSError or ValueError where nobody can say: a loop of links, or ``..`` after something that is not there,
    which could still become a link to anywhere.
    """
    if path.startswith("~"):
        raise ValueError("it begins with '~', which some programs take for the home folder")
    whole = os.path.join(os.getcwd() if base is None else base, path)  # noqa: PTH118, PTH109  a path that does not tidy up '..'
    parts = whole.split("/")
    known = len(parts) - parts[::-1].index("..") if ".." in parts else 0
    head = os.path.realpath("/".join(parts[:known]), strict=True) if known else ""
    found = os.path.realpath("/".join([head, *parts[known:]] if known else parts))
    if os.path.islink(found):  # noqa: PTH114
        raise OSError("it is a loop of links")
    return found


def absolute(path: str) -> str:
    """The path from the top, as it is written now. Links stay: they are followed when a call is decided."""
    return os.path.abspath(path)  # noqa: PTH100  Path.absolute keeps '..'
