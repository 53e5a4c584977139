"""The real paths behind the path arguments of a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import TypeAlias, cast

Real: TypeAlias = Callable[[str, "str | None"], str]
"""Resolves a path from a folder; raises OSError or ValueError for an unresolvable path."""


def paths_in(value: object) -> tuple[str, ...]:
    """The paths in an argument; none if it is neither a path nor a list of paths."""
    listed: list[object] = cast("list[object]", list(value)) if isinstance(value, list | tuple) else [value]  # pyright: ignore[reportUnknownArgumentType]  # of anything
    texts = tuple(path for path in listed if isinstance(path, str) and path)
    return texts if len(texts) == len(listed) else ()


def why_outside(path: str, roots: Iterable[str], base: str | None, real: Real) -> str | None:
    """The reason why a path is in none of the roots; None if it is in one."""
    try:
        return None if is_inside(path, roots, base, real) else "it leads elsewhere"
    except (OSError, ValueError) as error:
        return f"its target is unknown ({path_problem(error)})"


def is_inside(path: str, roots: Iterable[str], base: str | None, real: Real) -> bool:
    """True if a path is in one of the roots, links followed; raises the errors of `real`."""
    parts = PurePosixPath(real(path, base)).parts
    tops = [PurePosixPath(real(root, None)).parts for root in roots]
    return any(parts[: len(top)] == top for top in tops)


def path_problem(error: OSError | ValueError) -> str:
    """The reason why a path can't be resolved, in at most 100 characters."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said[:100]


def real_path(path: str, base: str | None) -> str:
    """The real path of `path`, which begins at `base` unless it is absolute. Its end need not exist.

    Raises OSError or ValueError for an unresolvable path: a loop of links, or ``..`` after a missing name, which could
    still become a link to anywhere.
    """
    if path.startswith("~"):
        raise ValueError("it begins with '~', which some programs take for the home folder")
    whole = os.path.join(os.getcwd() if base is None else base, path)  # noqa: PTH118, PTH109  does not resolve '..'
    parts = whole.split("/")
    known = len(parts) - parts[::-1].index("..") if ".." in parts else 0
    head = os.path.realpath("/".join(parts[:known]), strict=True) if known else ""
    found = os.path.realpath("/".join([head, *parts[known:]] if known else parts))
    if os.path.islink(found):  # noqa: PTH114
        raise OSError("it is a loop of links")
    return found


def absolute_path(path: str) -> str:
    """The absolute path, with links unresolved: they are followed when a call is decided."""
    return os.path.abspath(path)  # noqa: PTH100  Path.absolute keeps '..'
