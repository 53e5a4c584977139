"""A function may do anything: what it raises and returns is always a result."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from tests.every import every
from tests.patience import PATIENCE as SOON

from holdfast.errors import InvalidValue
from holdfast.records import ErrorInfo
from holdfast.tools import Bound, functions, results, tool


class Hostile(Exception):
    """An error that does as it likes when it is asked what it is."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__()
        self.act = act

    def __str__(self) -> str:
        return cast("str", self.act())


class Slippery(str):
    """Text that lies about itself."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError

    def split(self, *_args: Any, **_more: Any) -> list[str]:
        raise RuntimeError

    def __len__(self) -> int:
        return 0


def _raise(error: BaseException) -> Any:
    raise error


def _deep(depth: int) -> BaseException:
    error: Any = ValueError("bottom")
    for _ in range(depth):
        error = ExceptionGroup("more", [error])
    return cast("BaseException", error)


# ---- what it raises --------------------------------------------------------------------------------------------------


@every(
    "act",
    [
        lambda: _raise(RuntimeError()),
        lambda: _raise(SystemExit(3)),
        lambda: _raise(KeyboardInterrupt()),
        lambda: _raise(RecursionError()),
        lambda: _raise(asyncio.CancelledError()),
        lambda: 3,
        lambda: None,
    ],
    ids=["error", "exit", "interrupt", "recursion", "cancel", "number", "none"],
)
def test_an_error_that_can_not_be_asked_is_told_by_its_kind(act: Callable[[], Any]) -> None:
    assert results.error_from_exception(Hostile(act)) == ErrorInfo("Hostile", "")


def test_a_message_that_lies_about_itself_is_read_as_it_is() -> None:
    assert results.error_from_exception(Hostile(lambda: Slippery("the truth"))) == ErrorInfo("Hostile", "the truth")


def test_a_kind_of_error_can_not_hide_its_name() -> None:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # that is the point
            raise RuntimeError

    class Masked(Exception, metaclass=Meta): ...

    assert results.error_from_exception(Masked("x")) == ErrorInfo("Masked", "x")


def test_a_huge_name_of_an_error_is_cut() -> None:
    error = type("E" * 10_000, (Exception,), {})("x")
    assert len(results.error_from_exception(error).kind) == results.MAX_NAME


def test_running_out_of_memory_is_told_in_words() -> None:
    assert results.error_from_exception(MemoryError()) == ErrorInfo("MemoryError", "it ran out of memory")


def test_a_message_of_a_hundred_megabytes_is_cut() -> None:
    assert len(results.error_from_exception(ValueError("word " * 20_000_000)).message) <= results.MAX_TEXT


def test_a_group_in_a_group_ten_thousand_deep_is_told() -> None:
    assert results.error_from_exception(_deep(10_000)) == ErrorInfo("ValueError", "bottom")


def test_of_a_group_of_very_many_some_are_told_and_the_rest_counted() -> None:
    told = results.error_from_exception(ExceptionGroup("many", [ValueError(n) for n in range(100_000)])).message
    assert told.startswith("ValueError: 0; ValueError: 1;")
    assert told.endswith(f"; and {100_000 - results.MAX_MEMBERS:,} more")
    assert len(told) <= results.MAX_TEXT


def test_a_group_with_an_exit_in_it_is_told() -> None:
    told = results.error_from_exception(BaseExceptionGroup("both", [SystemExit(3), ValueError("x")]))
    assert told == ErrorInfo("BaseExceptionGroup", "SystemExit: 3; ValueError: x")


async def test_a_recursion_without_end_is_an_error() -> None:
    @tool
    def falls(n: int) -> int:
        return falls.function(n + 1)

    with pytest.raises(RecursionError) as caught:
        await falls.call(Bound({"n": 0}))
    assert results.error_from_exception(caught.value).message.startswith("maximum recursion depth exceeded")


async def test_an_exit_in_what_a_function_returns_does_not_end_the_process() -> None:
    @tool
    def lazy() -> Iterator[int]:
        return (sys.exit(3) for _ in range(1))

    with pytest.raises(RuntimeError, match="asked to end the process"):
        await lazy.call(Bound({}))


# ---- what it returns -------------------------------------------------------------------------------------------------


async def _numbers() -> AsyncIterator[int]:
    for n in range(3):
        yield n


def gives_generator() -> Iterator[int]:
    return (n for n in range(3))


def gives_map() -> Iterator[int]:
    return map(int, "012")


async def gives_generator_later() -> Iterator[int]:
    return (n for n in range(3))


def gives_async_generator() -> AsyncIterator[int]:
    return _numbers()


async def gives_async_generator_later() -> AsyncIterator[int]:
    return _numbers()


@pytest.mark.parametrize(
    "function",
    [gives_generator, gives_map, gives_generator_later, gives_async_generator, gives_async_generator_later],
    ids=lambda function: function.__name__,
)
async def test_an_iterator_is_read_to_its_end(function: Callable[..., Any]) -> None:
    assert await tool(function).invoke(Bound({})) == [0, 1, 2]


def gives_thread() -> Iterator[int]:
    return (threading.get_ident() for _ in range(1))


async def gives_thread_later() -> Iterator[int]:
    return gives_thread()


@pytest.mark.parametrize("function", [gives_thread, gives_thread_later], ids=["plain", "async"])
async def test_an_iterator_is_not_read_on_the_event_loop(function: Callable[..., Any]) -> None:
    assert await tool(function).invoke(Bound({})) != [threading.get_ident()]


async def test_an_iterator_without_end_is_an_error_that_says_that_the_function_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(functions, "MAX_ITEMS", 100)

    @tool
    def endless() -> Iterator[int]:
        return iter(int, 1)

    with pytest.raises(ValueError, match="the function ran, but the iterator it returned has more than 100 items"):
        await asyncio.wait_for(endless.call(Bound({})), SOON)


async def test_an_iterator_that_raises_is_what_the_call_raises() -> None:
    @tool
    def breaks() -> Iterator[float]:
        return (1 / n for n in (1, 0))

    with pytest.raises(ZeroDivisionError):
        await breaks.call(Bound({}))


async def test_an_open_file_is_not_read() -> None:
    @tool
    def opens() -> object:
        return io.StringIO("secret\n")

    with pytest.raises(InvalidValue, match="StringIO has no JSON form"):
        await opens.invoke(Bound({}))


class Exploding:
    """What can't be read without harm."""

    def model_dump(self, **_more: object) -> object:
        raise RecursionError


@dataclass
class Cyclic:
    me: object = None


def _cycle() -> object:
    made = Cyclic()
    made.me = made
    return made


@pytest.mark.parametrize(
    "value", [Exploding(), _cycle(), {1: 2}, {"a": {3}}, "\udce9"], ids=lambda value: type(value).__name__
)
def test_a_value_that_can_not_be_kept_says_that_the_tool_ran(value: object) -> None:
    @tool
    def give() -> object: ...

    with pytest.raises(InvalidValue, match="the tool 'give' ran to its end"):
        give.as_json(value)
