"""What can go wrong with a provider, and which request meets it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument, InvalidNumber

if TYPE_CHECKING:
    from holdfast.testing.provider.requests import ProviderRequest


@dataclass(frozen=True, slots=True)
class HttpError:
    """An answer with an error status. `retry_after` is a number of seconds, or a text such as a date."""

    status: int
    retry_after: float | str | None = None
    message: str = "the provider was told to fail"
    code: str = ""

    def __post_init__(self) -> None:
        check_int("status", self.status, least=400, most=599)
        _check_line("retry_after", self.retry_after)


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The connection ends before the first byte of an answer."""


@dataclass(frozen=True, slots=True)
class CutStream:
    """The answer ends after so many chunks, and never with the last frame.

    `clean`: as if it were whole, as far as HTTP can tell. Otherwise the connection breaks.
    """

    after: int
    clean: bool = True

    def __post_init__(self) -> None:
        check_int("after", self.after)


@dataclass(frozen=True, slots=True)
class Stall:
    """Silence after so many chunks (None: before the first byte), for some seconds or until somebody hangs up."""

    after: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.after is not None:
            check_int("after", self.after)
        if self.seconds is not None:
            check_seconds("seconds", self.seconds)


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A frame that is no JSON comes after so many chunks; the rest follows as if nothing had happened."""

    after: int = 0

    def __post_init__(self) -> None:
        check_int("after", self.after)


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """The status is 200, but after so many chunks the stream says that it failed, and ends."""

    after: int = 0
    status: int = 529
    message: str = "the provider was told to fail"

    def __post_init__(self) -> None:
        check_int("after", self.after)
        check_int("status", self.status, least=400, most=599)


ProviderFault: TypeAlias = HttpError | Disconnect | CutStream | Stall | BadFrame | ErrorFrame
FaultFunction: TypeAlias = "Callable[[ProviderRequest], ProviderFault | None]"
Faults: TypeAlias = "Iterable[ProviderFault] | Mapping[int, ProviderFault | Iterable[ProviderFault]] | FaultFunction"

_FAULTS: Final = (HttpError, Disconnect, CutStream, Stall, BadFrame, ErrorFrame)
_WANTED: Final = "HttpError, Disconnect, CutStream, Stall, BadFrame or ErrorFrame"


def _check_line(what: str, value: object) -> None:
    if isinstance(value, str) and not (value.isascii() and value.isprintable()):
        raise InvalidArgument(what, value, "printable ASCII in one line")
    if isinstance(value, int | float):
        check_seconds(what, value)


def check_seconds(what: str, value: object) -> float:
    """A span of time, or `InvalidNumber`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InvalidNumber(what, value, "it must be 0 seconds or more")
    return value


def _checked_fault(fault: object) -> ProviderFault:
    if not isinstance(fault, _FAULTS):
        raise InvalidArgument("fault", fault, _WANTED)
    return fault


class FaultPlan:
    """Which request meets which fault: each is met once, except those of a function."""

    def __init__(self, faults: Faults) -> None:
        self._function: FaultFunction | None = None
        self._next: deque[ProviderFault] = deque()
        self._at: dict[int, deque[ProviderFault]] = {}
        given: object = faults
        if callable(faults):
            self._function = faults
        elif isinstance(given, Mapping):
            for position, some in cast("Mapping[object, object]", given).items():
                listed = cast("Iterable[object]", some) if isinstance(some, Iterable) else (some,)
                self._at[check_int("position of a fault", position)] = deque(map(_checked_fault, listed))
        elif isinstance(given, Iterable) and not isinstance(given, str):
            self._next.extend(map(_checked_fault, cast("Iterable[object]", given)))
        else:
            raise InvalidArgument("faults", given, "a list of faults, faults by position, or a function of the request")

    def take(self, request: ProviderRequest) -> ProviderFault | None:
        if self._function is not None:
            found = self._function(request)
            return None if found is None else _checked_fault(found)
        here = self._at.get(request.asked.position)
        if here:
            return here.popleft()
        return self._next.popleft() if self._next else None
