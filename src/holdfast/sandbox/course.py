"""The course of one program: which calls it has made, which of them wait, and which result comes next. Pure.

The order in which concurrent calls are settled is the order in which their results were given. A call that must be
answered at once (the clock, a pause that blocks) takes its result whenever it is made. So the course depends on the
results and their order, and not on how many of them were given at a time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.effects.canonical import digest as digest_of
from holdfast.errors.programs import AnswerRefused, ProgramDiverged
from holdfast.sandbox.limits import MOST_BYTES
from holdfast.sandbox.steps import Calls, HostCall, Raised, call_id
from holdfast.sandbox.values import NotPlain, plain

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from holdfast.sandbox.sealing import Place
    from holdfast.sandbox.steps import CallKind, Outcome, Result

_encode: Final = msgspec.json.Encoder(order="sorted").encode
_START: Final = b"\0" * 32


def program_digest(source: str, variables: dict[str, Any], seed: str) -> str:
    """What a program is: its source, the variables it begins with, and the seed of its random numbers."""
    return digest_of("program", {"source": source, "variables": variables, "seed": seed})


def call_digest(kind: CallKind, name: str, arguments: dict[str, Any]) -> str:
    """What a call asks for; its arguments are plain JSON already."""
    return digest_of_bytes("program-call", canonical_json((kind, name, arguments)))


class Course:
    """One program's calls and results, in order."""

    __slots__ = (
        *("_by_id", "_chain", "_digests", "_given", "_linked", "_new", "_numbers", "_ordinal", "_prefix", "_queue"),
        "_waiting",
    )

    def __init__(self, program: str) -> None:
        self._prefix = call_id(program, 0)[:-1]
        self._ordinal = 0
        self._waiting: dict[int, HostCall] = {}  # in the order in which they were made
        self._numbers: dict[str, int] = {}
        self._new: list[HostCall] = []
        self._by_id: dict[str, Outcome] = {}
        self._digests: dict[str, str] = {}
        self._queue: deque[str] = deque()
        self._given: list[Result] = []
        self._chain = _START
        self._linked = 0

    # ---- calls ----

    @property
    def made(self) -> int:
        """How many calls there were."""
        return self._ordinal

    def call(self, number: int, kind: CallKind, name: str, arguments: dict[str, Any]) -> HostCall:
        """The call to which the sandbox gave `number`; `ProgramDiverged` if its record is about another one."""
        known = self._waiting.get(number)  # a snapshot was taken at this very call
        if known is not None:
            return known
        digest = call_digest(kind, name, arguments)
        made = HostCall(f"{self._prefix}{self._ordinal}", kind, name, arguments, digest)
        recorded = self._digests.pop(made.id, "")
        if recorded and recorded != made.digest:
            asked = f"{name} with arguments of the digest {made.digest[:12]}"
            raise ProgramDiverged(made.id, f"a call of the digest {recorded[:12]}", asked)
        self._ordinal += 1
        self._waiting[number] = made
        self._numbers[made.id] = number
        if made.id not in self._by_id:
            self._new.append(made)
        return made

    def waits(self, number: int) -> bool:
        """Whether the call to which the sandbox gave `number` was made and has no result."""
        return number in self._waiting

    @property
    def waiting(self) -> bool:
        """Whether any call has no result."""
        return bool(self._waiting)

    def only(self, number: int) -> bool:
        """Whether no other call waits for its result, given or not."""
        return len(self._waiting) == 1 and number in self._waiting

    # ---- results ----

    def give(self, results: Iterable[Result]) -> None:
        """Results in their order, from a record or from the host."""
        for result in results:
            if result.id in self._by_id:
                raise AnswerRefused(result.id, "it was given twice")
            if not result.id.startswith(self._prefix):
                raise AnswerRefused(result.id, "it is a call of another program")
            self._by_id[result.id] = result.outcome
            if result.digest:
                self._digests[result.id] = result.digest
            self._queue.append(result.id)
            self._given.append(result)

    @property
    def given(self) -> Sequence[Result]:
        """All results that were given, in their order."""
        return self._given

    def check_answers(self, results: Sequence[Result]) -> None:
        """`AnswerRefused` for answers to anything but calls that wait."""
        seen: set[str] = set()
        for result in results:
            number = self._numbers.get(result.id)
            if number is None or result.id in self._by_id or result.id in seen:
                raise AnswerRefused(result.id, "no such call waits for an answer")
            call = self._waiting[number]
            if result.digest and result.digest != call.digest:
                raise AnswerRefused(result.id, f"it is the answer to another call than that of {call.name}")
            check_outcome(call, result.outcome)
            check_plain(result)
            seen.add(result.id)

    def at_once(self, number: int) -> Outcome | None:
        """The result of a call that can't wait, if it was given."""
        call = self._waiting[number]
        outcome = self._by_id.pop(call.id, None)
        if outcome is not None:
            check_outcome(call, outcome)
            self._settle(number, call.id)
        return outcome

    def next(self, pending: Container[int]) -> tuple[int, Outcome] | None:
        """The next result for one of the calls that are `pending`, by the sandbox's number."""
        while self._queue:
            found = self._queue[0]
            number = self._numbers.get(found)
            if number is None and found in self._by_id and self._ordinal_of(found) >= self._ordinal:
                raise ProgramDiverged(found, "a result of this call", "nothing: the call was not made")
            self._queue.popleft()
            outcome = self._by_id.pop(found, None)
            if number is None or outcome is None:
                continue  # it was answered at once
            self._settle(number, found)
            if number in pending:  # else nobody waits for it any more
                return number, outcome
        return None

    def coming(self, after: int) -> Outcome | None:
        """The recorded result of the call that is made after so many others, if it is the next but as many as well."""
        if after >= len(self._queue):
            return None
        found = self._queue[after]
        return self._by_id.get(found) if found == f"{self._prefix}{self._ordinal + after}" else None

    def _settle(self, number: int, call: str) -> None:
        del self._waiting[number], self._numbers[call]

    def answered(self) -> bool:
        """At the end of a program: whether all of its calls have an answer, also those that nobody awaited."""
        self.next(())
        return not self._waiting

    def finish(self) -> None:
        """When a program has ended or raised; `ProgramDiverged` for results of calls that it never made."""
        for found in self._queue:
            if found in self._by_id and self._ordinal_of(found) >= self._ordinal:
                raise ProgramDiverged(found, "a result of this call", "nothing: the program ended before it")

    # ---- steps and places ----

    def ask(self) -> Calls:
        """What the host is asked for now: all new calls."""
        new, self._new = tuple(self._new), []
        return Calls(new, tuple(call.id for call in self._waiting.values() if call.id not in self._by_id))

    @property
    def settled(self) -> bool:
        """Whether every result that was given has been used: only then can the place be found again."""
        return not self._by_id

    def mark(self) -> tuple[int, int, str, dict[int, HostCall]]:
        """The number of the next call, the results given, their digest, and the calls that wait."""
        for result in self._given[self._linked :]:  # only now: without snapshots nobody needs it
            self._chain = _linked(self._chain, result)
        self._linked = len(self._given)
        return self._ordinal, self._linked, self._chain.hex(), dict(self._waiting)

    def resume(self, place: Place, results: Sequence[Result]) -> bool:
        """Go to the place of a snapshot; False, with nothing changed, if it had other results than these."""
        if place.given > len(results):
            return False
        chain = _START
        for result in results[: place.given]:
            chain = _linked(chain, result)
        if chain.hex() != place.chain:
            return False
        self._ordinal, self._chain, self._linked = place.ordinal, chain, place.given
        self._given = list(results[: place.given])
        self._waiting = dict(place.waiting)
        self._numbers = {call.id: number for number, call in place.waiting.items()}
        self.give(results[place.given :])
        self._new = [call for call in self._waiting.values() if call.id not in self._by_id]
        return True

    def _ordinal_of(self, call: str) -> int:
        number = call.removeprefix(self._prefix)
        return int(number) if number.isascii() and number.isdigit() else self._ordinal


def check_outcome(call: HostCall, outcome: Outcome) -> None:
    """`AnswerRefused` for an answer of a kind that this call does not have."""
    if call.kind != "clock" or isinstance(outcome, Raised):
        return
    value = outcome.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**33:
        raise AnswerRefused(call.id, "the clock is answered with seconds since 1970")


def check_plain(result: Result) -> None:
    """`AnswerRefused` for an answer that JSON has no word for: it could not be recorded."""
    if isinstance(result.outcome, Raised):
        return
    try:
        plain(result.outcome.value, MOST_BYTES)
    except NotPlain as reason:
        raise AnswerRefused(result.id, str(reason)) from None


def _linked(chain: bytes, result: Result) -> bytes:
    return hashlib.sha256(b"%b%b\n%b" % (chain, result.id.encode(), _encode(result.outcome))).digest()
