"""Tables of cases that are tried in one test: quicker than a test for each, and as clear about what fails.

`@every` takes what `pytest.mark.parametrize` takes. It tries all cases, all with the same fixtures, and then raises one
error that names those that fail, each with its data and its own error.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from functools import wraps
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

Test = TypeVar("Test", bound="Callable[..., Any]")
Case: TypeAlias = "tuple[str, dict[str, Any]]"
Failure: TypeAlias = "tuple[str, Exception]"
Ids: TypeAlias = "Iterable[object] | Callable[[Any], object] | None"


def every(names: str | Iterable[str], rows: Iterable[Any], *, ids: Ids = None) -> Callable[[Test], Test]:
    """Call a test with each row of a table. Stacked tables are tried in all combinations."""
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else [*names]
    table = [*_cases(words, rows, ids)]
    assert table, "a table without a row tests nothing"

    def around(test: Test) -> Test:
        signature = inspect.signature(test)
        assert signature.parameters.keys() >= {*words}, f"the test does not take {words}"
        plain, below = cast("tuple[Test, list[Case]]", vars(test).get("every", (test, [("", {})])))
        cases = [(f"{name}-{inner}".rstrip("-"), row | more) for (name, row), (inner, more) in product(table, below)]

        @wraps(plain)
        def called(**given: object) -> None:
            failed: list[Failure] = []
            for name, row in cases:
                with _noted(name, row, failed):
                    plain(**given, **row)
            _raise(failed, len(cases))

        @wraps(plain)
        async def awaited(**given: object) -> None:
            failed: list[Failure] = []
            for name, row in cases:
                with _noted(name, row, failed):
                    await plain(**given, **row)
            _raise(failed, len(cases))

        tried = awaited if inspect.iscoroutinefunction(plain) else called
        kept = [parameter for name, parameter in signature.parameters.items() if name not in words]
        vars(tried).update(every=(plain, cases), __signature__=signature.replace(parameters=kept))
        return cast("Test", tried)

    return around


def _cases(words: list[str], rows: Iterable[Any], ids: Ids) -> Iterator[Case]:
    given = None if ids is None or callable(ids) else [*ids]
    for index, row in enumerate(rows):
        name: object = given[index] if given else index
        if isinstance(row, type(pytest.param())):
            assert not row.marks, "a case with a mark is a test of its own"
            name, values = row.id or name, row.values
        else:
            values = (row,) if len(words) == 1 else tuple(row)
        if callable(ids):
            name = "-".join(str(ids(value)) for value in values)
        yield str(name), dict(zip(words, values, strict=True))


@contextmanager
def _noted(name: str, row: dict[str, Any], failed: list[Failure]) -> Generator[None]:
    """Note the error of a case, and go on."""
    try:
        yield
    except Exception as error:  # all that fail are told at the end
        note = _note(name, row)
        error.add_note(note)
        failed.append((note, error))
    except (pytest.fail.Exception, pytest.skip.Exception) as error:  # no `Exception`, nor may one case skip the others
        failed.append((_note(name, row), AssertionError(error.msg)))


def _raise(failed: list[Failure], count: int) -> None:
    if failed:
        told = "\n".join(["", *(f"{note}: {_shown(error)}" for note, error in failed), ""])
        raise ExceptionGroup(f"{len(failed)} of {count} cases fail{told}", [error for _, error in failed])


def _note(name: str, row: dict[str, Any]) -> str:
    return f"case {name} ({', '.join(f'{word}={_shown(value)}' for word, value in row.items())})"


def _shown(value: object) -> str:
    try:
        return f"{value!r:.300}"
    except Exception as error:  # a hostile value, or a number with too many digits
        return f"<{type(value).__name__} that can't be shown: {error}>"
