"""What is tried again, when, and what is written down about it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

import holdfast as hf
from holdfast.errors import ContextOverflow, InvalidNumber, ModelError, StreamCut
from holdfast.messages import (
    ModelReply,
    ModelRequest,
    StreamEnd,
    StreamEvent,
    StreamNote,
    StreamReset,
    Text,
    TextChunk,
    Usage,
    UserMessage,
)
from holdfast.models.dialect import Endpoint
from holdfast.models.http import HttpModel
from holdfast.models.registry import load_dialect
from holdfast.models.retry import Retry, delay_from_headers, explain_refused_delay, is_retryable, retry_delay
from holdfast.models.transport import Timeouts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

# ---- the decision ----------------------------------------------------------------------------------------------------


def failure(kind: str = "server_error", **more: Any) -> ModelError:
    return ModelError("no", kind=kind, **more)


@every(
    "error",
    [
        *(failure(status=status) for status in (408, 409, 425, 429, 500, 501, 502, 503, 504, 520, 529)),
        failure("network", retryable=True),
        failure("timeout", retryable=True),
        failure("overloaded", retryable=True, status=200),
        failure("bad_request", status=409),
        StreamCut("m"),
    ],
    ids=lambda error: f"{error.kind} {error.status}",
)
def test_what_may_pass_is_worth_another_try(error: ModelError) -> None:
    assert is_retryable(error)


@every(
    "error",
    [
        *(failure("bad_request", status=status, retryable=True) for status in (400, 401, 403, 404)),
        failure("authentication", retryable=True),
        failure("permission", retryable=True),
        failure("not_found", retryable=True),
        failure("billing", status=429, retryable=True),
        failure("content_filter", status=500),
        failure("bad_frame", status=200),
        failure("context_overflow", status=413, retryable=True),
        ContextOverflow("too long"),
        failure("model_error"),
    ],
    ids=lambda error: f"{error.kind} {error.status}",
)
def test_what_would_come_again_is_not_worth_another_try(error: ModelError) -> None:
    assert not is_retryable(error)


def seconds(
    tried: int, error: ModelError | None = None, *, elapsed: float = 0, chance: float = 0.0, **policy: Any
) -> Any:
    return retry_delay(Retry(**policy), error or failure(status=500), failures=tried, elapsed=elapsed, chance=chance)


def test_each_pause_is_twice_as_long_as_the_one_before() -> None:
    assert [seconds(n, attempts=9) for n in range(1, 6)] == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_no_pause_of_our_own_is_longer_than_the_longest() -> None:
    assert [seconds(n, attempts=1_000, longest=3) for n in (3, 4, 60, 999)] == [2.0, 3.0, 3.0, 3.0]


def test_chance_takes_off_up_to_half() -> None:
    assert [seconds(1, chance=chance) for chance in (0.0, 0.5, 1.0)] == [0.5, 0.375, 0.25]


def test_the_last_try_is_followed_by_none() -> None:
    assert [seconds(n, attempts=3) is None for n in (1, 2, 3, 4)] == [False, False, True, True]


def test_one_try_is_one_try() -> None:
    assert seconds(1, attempts=1) is None


def test_a_pause_that_would_end_too_late_is_not_begun() -> None:
    assert seconds(1, elapsed=9.5, within=10) == 0.5
    assert seconds(1, elapsed=9.6, within=10) is None


@pytest.mark.parametrize(("asked", "waited"), [(0.0, 0.5), (0.1, 0.5), (5.0, 5.0), (120.0, 120.0), (120.1, None)])
def test_a_provider_gets_the_pause_that_it_asks_for_up_to_a_limit(asked: float, waited: float | None) -> None:
    assert seconds(1, failure(status=429, retry_after=asked)) == waited


@pytest.mark.parametrize(
    ("asked", "elapsed", "left", "allowed"),
    [
        (300.0, 0.0, None, "Retry.longest_asked allows 120.0 s"),
        (60.0, 580.0, None, "Retry.within leaves 20.0 s"),
        (60.0, 0.0, 5.0, "Timeouts.total leaves 5.0 s"),
    ],
)
def test_a_pause_that_is_not_made_says_how_long_was_asked_and_allowed(
    asked: float, elapsed: float, left: float | None, allowed: str
) -> None:
    why = explain_refused_delay(Retry(), failure(status=429, retry_after=asked), elapsed=elapsed, left=left)
    assert why == f"it asks for a pause of {asked:.1f} s, and {allowed}"


def test_a_pause_that_is_made_needs_no_words() -> None:
    assert not explain_refused_delay(Retry(), failure(status=429, retry_after=5.0), elapsed=0.0, left=60.0)


@pytest.mark.parametrize("asked", [math.nan, math.inf, -1.0])
def test_a_pause_that_can_not_be_meant_is_as_good_as_none(asked: float) -> None:
    assert seconds(1, failure(status=429, retry_after=asked)) == 0.5


@given(st.floats(0, 120), st.floats(0, 1), st.integers(1, 3))
def test_nobody_comes_back_earlier_than_asked(asked: float, chance: float, tried: int) -> None:
    waited = seconds(tried, failure(status=429, retry_after=asked), chance=chance)
    assert waited >= asked


@given(st.integers(1, 2_000), st.floats(0, 1e6), st.floats(0, 1), st.none() | st.floats())
def test_every_pause_is_a_number_within_the_policy(
    tried: int, elapsed: float, chance: float, asked: float | None
) -> None:
    waited = seconds(tried, failure(status=429, retry_after=asked), elapsed=elapsed, chance=chance, attempts=1_000)
    assert waited is None or (0 <= waited <= 121 and elapsed + waited <= 600)


@every(
    "wrong",
    [{"attempts": 0}, {"attempts": 1.5}, {"first": -1}, {"longest": math.nan}, {"within": math.inf}, {"factor": "2"}],
    ids=str,
)
def test_a_policy_that_can_not_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidNumber):
        Retry(**wrong)


# ---- what the headers ask for ----------------------------------------------------------------------------------------

_NOON = 1_577_880_000.0
_LATER = "Wed, 01 Jan 2020 12:00:30 GMT"


@every(
    ("headers", "asked"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "1500", "retry-after": "1"}, 1.5),
        ({"retry-after-ms": "1500", "x-ms-retry-after-ms": "2500", "retry-after": "1"}, 2.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": _LATER}, 30.0),
        ({"retry-after": _LATER, "date": "Wed, 01 Jan 2020 12:00:10 GMT"}, 20.0),
        ({"retry-after": _LATER, "date": "Wed, 01 Jan 2020 12:01:00 GMT"}, 0.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": ""}, None),
    ],
    ids=str,
)
def test_the_headers_say_how_long_to_wait(headers: dict[str, str], asked: float | None) -> None:
    assert delay_from_headers(headers, _NOON) == asked


@given(st.text(max_size=40))
def test_no_header_breaks_the_reading_of_it(said: str) -> None:
    asked = delay_from_headers({"retry-after": said, "date": said}, _NOON)
    assert asked is None or asked >= 0


# ---- a call over several tries ---------------------------------------------------------------------------------------


class Served:
    """An answer that a test wrote, as a transport brings it."""

    def __init__(self, status: int, headers: dict[str, str], body: list[bytes | ModelError]) -> None:
        self.status = status
        self.headers: Mapping[str, str] = headers
        self.closed = False
        self.body = body

    async def _chunks(self) -> AsyncIterator[bytes]:
        for piece in self.body:
            if isinstance(piece, ModelError):
                raise piece
            yield piece

    def chunks(self) -> AsyncIterator[bytes]:
        return self._chunks()

    def close(self) -> None:
        self.closed = True


class Played:
    """A transport without a network: the next answer for each request. Time passes only when it is told to."""

    def __init__(self, *answers: Served | ModelError, takes: float = 0.0) -> None:
        self.answers = list(answers)
        self.opened: list[Served] = []
        self.now = 1_000.0
        self.pauses: list[float] = []
        self.timeouts: list[Timeouts] = []
        self._takes = takes

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Served:
        self.now += self._takes
        self.timeouts.append(timeouts)
        answer = self.answers.pop(0)
        if isinstance(answer, ModelError):
            raise answer
        self.opened.append(answer)
        return answer

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def model(self, spoken: str = "chat", **more: Any) -> HttpModel:
        endpoint = Endpoint(provider="played", dialect=spoken, base_url="http://played/v1", auth="none")
        more = {"clock": lambda: self.now, "sleep": self.sleep, "chance": lambda: 0.0, **more}
        return HttpModel(endpoint, "m", load_dialect(spoken), transport=self, **more)


def chat(*deltas: str, whole: bool = True) -> Served:
    """An answer in the chat dialect; without `whole` it ends in the middle."""
    frames: list[dict[str, Any]] = [
        {"id": "c1", "choices": [{"index": 0, "delta": {"content": delta}}]} for delta in deltas
    ]
    if whole:
        frames.append({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body: list[bytes | ModelError] = [f"data: {json.dumps(frame)}\n\n".encode() for frame in frames]
    return Served(200, {"content-type": "text/event-stream", "x-request-id": "req-good"}, body)


def refused(status: int, **headers: str) -> Served:
    body = json.dumps({"error": {"message": "not now", "type": "error"}}).encode()
    return Served(status, {"content-type": "application/json", "x-request-id": f"req-{status}", **headers}, [body])


def lost() -> ModelError:
    return ModelError("no connection", kind="network", retryable=True)


REQUEST = ModelRequest(messages=(UserMessage("u1", (Text("hello"),)),))


async def events_of(model: HttpModel) -> list[StreamEvent]:
    return [event async for event in model.stream(REQUEST)]


async def reply_of(model: HttpModel) -> ModelReply:
    return await model.respond(REQUEST)


async def failure_of(model: HttpModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await model.respond(REQUEST)
    return caught.value


async def test_an_answer_at_the_first_try_is_one_line_of_the_ledger() -> None:
    (line,) = (await reply_of(Played(chat("hi")).model())).attempts
    assert (line.outcome, line.status, line.request_id) == ("completed", 200, "req-good")


async def test_every_try_is_in_the_ledger_of_the_reply() -> None:
    played = Played(lost(), refused(503), chat("cu", whole=False), chat("hi"), takes=0.25)
    reply = await reply_of(played.model())
    told = [(line.model, line.outcome, line.status, line.request_id, line.ms) for line in reply.attempts]
    assert [line[1:] for line in told[:1]] == [("network", None, None, 250)]
    assert [(line[2], line[3], line[4]) for line in told[1:]] == [
        (503, "req-503", 250),
        (200, "req-good", 250),
        (200, "req-good", 250),
    ]
    assert [line[1] for line in told[2:]] == ["stream_cut", "completed"]
    assert {line[0] for line in told} == {"played:m"}


async def test_every_try_is_on_the_error_when_none_succeeds() -> None:
    error = await failure_of(Played(*(refused(500) for _ in range(4))).model())
    assert [line.status for line in error.attempts] == [500, 500, 500, 500]
    assert all("not now" in line.message for line in error.attempts)


async def test_an_error_that_is_final_at_once_has_one_try() -> None:
    error = await failure_of(Played(refused(401)).model())
    assert (error.kind, error.request_id, len(error.attempts)) == ("authentication", "req-401", 1)


async def test_the_pauses_are_those_of_the_policy() -> None:
    played = Played(lost(), refused(500), refused(429, **{"retry-after": "6"}), chat("hi"))
    await reply_of(played.model())
    assert played.pauses == [0.5, 1.0, 6.0]


async def test_time_bounds_the_tries_as_well_as_their_number() -> None:
    played = Played(*(lost() for _ in range(100)), takes=10.0)
    error = await failure_of(played.model(retry=Retry(attempts=100, within=65)))
    # The clock starts when the first one has failed: a long stream that breaks late gets another chance.
    assert len(error.attempts) == 6


async def test_a_stream_that_breaks_after_an_hour_is_tried_again() -> None:
    played = Played(chat("cu", whole=False), chat("hi"), takes=3_600.0)
    assert (await reply_of(played.model())).text == "hi"


async def test_what_was_shown_is_taken_back_before_it_comes_again() -> None:
    events = await events_of(Played(chat("one ", "two ", whole=False), chat("one ", "two ", "three")).model())
    shown: list[str] = []
    for event in events:
        if isinstance(event, StreamReset):
            shown.clear()
        elif isinstance(event, TextChunk):
            shown.append(event.text)
    end = events[-1]
    assert isinstance(end, StreamEnd)
    assert "".join(shown) == end.reply.text == "one two three"


async def test_observers_are_told_of_a_retry_and_of_its_reason() -> None:
    notes = [event for event in await events_of(Played(lost(), chat("hi")).model()) if isinstance(event, StreamNote)]
    assert [(note.kind, note.detail) for note in notes] == [("retry", "try 2 in 0.5 s after network: no connection")]


async def test_a_try_that_failed_lets_go_of_its_connection() -> None:
    played = Played(refused(500), chat("x", whole=False), chat("hi"))
    await reply_of(played.model())
    assert [served.closed for served in played.opened] == [True, True, True]


async def test_a_connection_that_breaks_in_the_middle_is_a_cut_stream() -> None:
    broken = chat("half", whole=False)
    broken.body.append(lost())
    error = await failure_of(Played(broken).model(retry=Retry(attempts=1)))
    assert isinstance(error, StreamCut)
    assert error.message.endswith("no connection")


async def test_a_stream_that_stalls_is_a_timeout_and_no_cut() -> None:
    stalled = chat("half", whole=False)
    stalled.body.append(ModelError("nothing came", kind="timeout", retryable=True))
    assert (await failure_of(Played(stalled).model(retry=Retry(attempts=1)))).kind == "timeout"


async def test_the_deadline_of_the_call_shrinks_with_every_try() -> None:
    played = Played(lost(), lost(), chat("hi"), takes=2.0)
    await reply_of(played.model(timeouts=Timeouts(total=20)))
    assert [timeouts.total for timeouts in played.timeouts] == [20.0, 17.5, 14.5]


async def test_a_deadline_that_has_passed_ends_the_call() -> None:
    played = Played(lost(), chat("hi"), takes=30.0)
    error = await failure_of(played.model(timeouts=Timeouts(total=20)))
    assert (error.kind, len(played.answers)) == ("network", 1)


async def test_the_tokens_of_a_try_that_failed_are_in_the_ledger() -> None:
    spent = chat("half", whole=False)
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    spent.body.append(f"data: {json.dumps({'id': 'c1', 'choices': [], 'usage': usage})}\n\n".encode())
    reply = await reply_of(Played(spent, chat("hi")).model())
    assert reply.attempts[0].usage == Usage(input=7, output=2)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_the_tokens_of_a_response_that_says_that_it_failed_are_in_the_ledger(kind: str) -> None:
    used = {"input_tokens": 7, "output_tokens": 2}
    response = {"id": "r", "status": "failed", "error": {"code": "server_error", "message": "Oh."}, "usage": used}
    body = json.dumps({"type": "response.failed", "response": response} if "event" in kind else response)
    said = f"data: {body}\n\n" if "event" in kind else body
    played = Played(Served(200, {"content-type": kind}, [said.encode()]))
    error = await failure_of(played.model("responses", retry=Retry(attempts=1)))
    assert [line.usage for line in error.attempts] == [Usage(input=7, output=2)]


async def test_one_stream_that_dies_costs_a_durable_turn_one_retry_and_nothing_else() -> None:
    played = Played(chat("a", "b", "c", "d", "e", whole=False), chat("done"))
    outcome = await hf.run(hf.Agent("steady", model=played.model()), "go")
    assert (outcome.status, outcome.text, len(played.opened)) == ("completed", "done", 2)
