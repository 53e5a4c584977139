"""All errors of Holdfast, one tree; `actor` of each class says who can act. docs/errors.md lists them.

    HoldfastError
    |-- UsageError        the caller: wrong arguments, wrong order of calls, changed code under a running journal
    |-- WorldError        the outside world: an effect failed, or its outcome is unknown
    |-- StoreError        the store: busy, full, fenced, corrupt, refused
    `-- InvariantBroken   us: a bug; please report it

`Halted` and `Suspended` are not in the tree. They unwind user code that must not go on and derive from `BaseException`.
"""

# ruff: noqa: F403, F405  the modules have nothing but errors
from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors.base import *
from holdfast.errors.caller import *
from holdfast.errors.store import *
from holdfast.errors.world import *

if not TYPE_CHECKING:  # type checkers see the imports above, and nothing else
    del globals()["ErrorFields"]
    __all__ = ["Actor"]
    __all__ += [name for name, kind in globals().items() if isinstance(kind, type) and issubclass(kind, BaseException)]
