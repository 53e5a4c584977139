"""A key goes into one header of a request, and nowhere else: not into records, events, logs, errors, reprs or files.

Each key here is a canary: a word that stands nowhere but where it is given. A piece of it counts as the whole.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import traceback
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from tests.every import every
from tests.programs import Program, run

import holdfast as hf
from holdfast.errors import InvalidArgument, ModelError
from holdfast.messages import ModelRequest, Text, UserMessage
from holdfast.models.endpoints import resolve_endpoint
from holdfast.models.fallback import Fallback
from holdfast.models.http import HttpModel
from holdfast.models.recorded import RecordedModel
from holdfast.models.registry import load_dialect
from holdfast.models.retry import Retry
from holdfast.testing import ErrorFrame, FakeProvider, HttpError, ProviderRequest, ScriptedModel, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path

    from tests.programs import Programs

    from holdfast.models.transport import HttpResponse, Timeouts

CANARY = "Canary7Qx/f83+Zk2Lm9Wv4Rt6Yp1"
PIECE = 10
VARIABLES = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openai-chat": "OPENAI_API_KEY",
    "google": "GEMINI_API_KEY",
}
PROVIDERS = list(VARIABLES)
WAYS = ["environment", "given", "function", "async function"]
QUESTION = ModelRequest(messages=(UserMessage("m1", (Text("Hello?"),)),))


def leaked(words: object) -> bool:
    shown = words if isinstance(words, str) else repr(words)
    return any(CANARY[start : start + PIECE] in shown for start in range(len(CANARY) - PIECE + 1))


def test_a_piece_of_the_key_counts_as_a_leak() -> None:
    assert leaked(f"...{CANARY[4:18]}...")
    assert not leaked("nothing to see")


# ---- a world that repeats what it hears ------------------------------------------------------------------------------


class Said(NamedTuple):
    """A response; `{key}` in its body or in a header is the key that came with the request."""

    status: int
    body: str
    kind: str = "application/json"
    extra: Mapping[str, str] = {}


class Heard:
    """A response that came."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    def close(self) -> None:
        """Nothing to let go."""


class Echo:
    """A transport that answers in turn, and puts the key into its answers."""

    def __init__(self, *said: Said) -> None:
        self._said = deque(said)
        self.keys: list[str] = []

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:
        carried = [value for name, value in headers.items() if name in {"authorization", "x-api-key", "x-goog-api-key"}]
        self.keys += [value.removeprefix("Bearer ") for value in carried]
        said = self._said.popleft()
        shown = {name: value.replace("{key}", self.keys[-1]) for name, value in said.extra.items()}
        return Heard(
            said.status, {"content-type": said.kind, **shown}, said.body.replace("{key}", self.keys[-1]).encode()
        )


def refusal(status: int = 401, message: str = "bad key {key}") -> Said:
    return Said(status, json.dumps({"type": "error", "error": {"type": "x", "code": "x", "message": message}}))


REFUSALS = {
    "json": refusal(),
    "key in the type and the code": Said(
        401, '{"type": "error", "error": {"type": "{key}", "code": "{key}", "status": "{key}", "message": "no"}}'
    ),
    "plain text": Said(401, "your key {key} is bad", "text/plain"),
    "web page": Said(403, "<html><body>{key}</body></html>", "text/html"),
    "json that is broken": Said(400, '{"error": {"message": "{key}', "application/json"),
    "json of another shape": Said(400, '["{key}", {"{key}": "{key}"}]'),
    "key at the end of what is kept": refusal(400, "x" * 980 + " {key} and more" + "y" * 500),
    "key at the beginning": refusal(400, "{key}" + "y" * 2_000),
    "key many times": refusal(400, "{key}" * 50),
    "header": Said(
        401,
        '{"error": {"message": "no"}}',
        extra={"request-id": "{key}", "x-request-id": "{key}", "retry-after": "{key}", "location": "/{key}"},
    ),
    "redirect": Said(302, "", "text/plain", {"location": "https://elsewhere.example/?key={key}"}),
    "server error": refusal(500),
    "whole answer of another shape": Said(200, '{"id": {"{key}": 1}, "choices": "{key}"}'),
    "stream that is no stream": Said(200, "data: {key}\n\n", "text/event-stream"),
    "error inside the stream": Said(
        200, 'event: error\ndata: {"type": "error", "error": {"message": "{key}"}}\n\n', "text/event-stream"
    ),
    "key at the end of what is kept of an error inside the stream": Said(
        200,
        'event: error\ndata: {"type": "error", "message": "LONG", "error": {"message": "LONG"}}\n\n'.replace(
            "LONG", "x" * 980 + " {key} and more" + "y" * 500
        ),
        "text/event-stream",
    ),
    "page with status 200": Said(200, "<html>{key}</html>", "text/html"),
}


def key_given(way: str, provider: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The `api_key` argument that brings the canary in this way."""

    async def later() -> str:
        await asyncio.sleep(0)
        return CANARY

    if way == "environment":
        monkeypatch.setenv(VARIABLES[provider], CANARY)
        return None
    return {"given": CANARY, "function": lambda: CANARY, "async function": later}[way]


def model(provider: str, key: Any, transport: Echo | Silent | None = None, **options: Any) -> HttpModel:
    place = resolve_endpoint(provider, base_url="https://provider.example/v1")
    options = {"retry": Retry(attempts=1), **options}
    return HttpModel(place, "m", load_dialect(place.dialect), api_key=key, transport=transport, **options)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Everything that any logger says, down to the last detail."""
    caplog.set_level(logging.DEBUG)
    return lambda: caplog.text + "".join(repr(vars(record)) for record in caplog.records)


def _chain(error: BaseException) -> Iterator[BaseException]:
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        found = pending.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            yield found
            pending += [found.__cause__, found.__context__]


def _ours(error: BaseException) -> bool:
    return isinstance(error, hf.HoldfastError)


def _shown(error: BaseException) -> str:
    """All that an error tells: words, attributes, notes, traceback, and the same of what led to it."""
    told = [(str(found), repr(found), found.args, vars(found) if _ours(found) else "") for found in _chain(error)]
    return repr(told) + "".join(traceback.format_exception(error))


# ---- errors ----------------------------------------------------------------------------------------------------------


@every("case", REFUSALS)
@every("provider", PROVIDERS)
async def test_an_error_never_has_the_key_that_the_provider_repeats(
    provider: str, case: str, logged: Callable[[], str]
) -> None:
    echo = Echo(REFUSALS[case])
    with pytest.raises(ModelError) as caught:
        await model(provider, CANARY, echo).respond(QUESTION)
    assert echo.keys == [CANARY]
    assert not leaked(_shown(caught.value))
    assert not leaked(logged())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_it_does_not_matter_how_the_key_was_given(
    provider: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = Echo(refusal())
    with pytest.raises(ModelError) as caught:
        await model(provider, key_given(way, provider, monkeypatch), echo).respond(QUESTION)
    assert echo.keys == [CANARY]
    assert not leaked(_shown(caught.value))


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_locals_that_an_error_reporter_collects_do_not_have_the_key(provider: str) -> None:
    with pytest.raises(ModelError) as caught:
        await model(provider, CANARY, Echo(refusal())).respond(QUESTION)
    ours = [
        frame
        for frame in traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
        if "holdfast" in frame.filename and "test_keys" not in frame.filename
    ]
    assert ours
    assert not [(frame.name, name) for frame in ours for name, value in (frame.locals or {}).items() if leaked(value)]


class Silent:
    """A transport that never gets a connection."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:
        self.asked.set()
        return await asyncio.get_running_loop().create_future()


async def test_the_locals_of_a_call_that_was_cancelled_while_it_connected_do_not_have_the_key() -> None:
    silent = Silent()
    asking = asyncio.ensure_future(model("openai", CANARY, silent).respond(QUESTION))
    await silent.asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await asking
    frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
    assert not [(frame.name, name) for frame in frames for name, value in (frame.locals or {}).items() if leaked(value)]


async def test_a_function_that_fails_to_give_the_key_does_not_tell_it() -> None:
    def broken() -> str:
        raise ValueError(f"the vault has {CANARY} and will not give it")

    with pytest.raises(ModelError) as caught:
        await model("openai", broken, Echo()).respond(QUESTION)
    assert not leaked(_shown(caught.value))


@pytest.mark.parametrize("ending", ["\n", "\r\nx-evil: 1", " two words", "\x00", "é"])
async def test_a_key_that_can_not_be_sent_is_not_told(ending: str) -> None:
    echo = Echo(refusal())
    with pytest.raises(ModelError) as caught:
        await model("openai", CANARY + ending, echo).respond(QUESTION)
    assert not leaked(_shown(caught.value))


@pytest.mark.parametrize("wrong", [[CANARY], {"key": CANARY}, CANARY.encode(), (CANARY,)])
def test_a_key_of_the_wrong_kind_is_not_told(wrong: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        model("openai", wrong)
    assert not leaked(_shown(caught.value))


@pytest.mark.parametrize("wrong", [[CANARY], CANARY.encode(), 7])
async def test_a_function_that_gives_something_else_than_a_key_does_not_tell_it(wrong: Any) -> None:
    with pytest.raises(ModelError) as caught:
        await model("openai", lambda: wrong, Echo()).respond(QUESTION)
    assert not leaked(_shown(caught.value))


async def test_a_connection_that_fails_does_not_tell_the_key(logged: Callable[[], str]) -> None:
    async with FakeProvider([text("hi")]) as provider:
        gone = provider.url
    place = resolve_endpoint("openai-chat", base_url=gone)
    with pytest.raises(ModelError) as caught:
        await HttpModel(place, "m", load_dialect("chat"), api_key=CANARY, retry=Retry(attempts=1)).respond(QUESTION)
    assert caught.value.kind == "network"
    assert not leaked(_shown(caught.value))
    assert not leaked(logged())


# ---- reprs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_no_repr_of_a_model_or_an_agent_has_the_key(way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = model("openai", key_given(way, "openai", monkeypatch))
    agent = hf.Agent("helper", model=found)
    held = (found, vars(found), vars(found.endpoint) if hasattr(found.endpoint, "__dict__") else found.endpoint)
    others = (Fallback([found, found]), RecordedModel(tmp_path / "r.json", found, mode="record"), copy(found), agent)
    assert not [thing for thing in (*held, *others) if leaked(repr(thing)) or leaked(str(thing))]


def test_a_model_with_a_key_can_not_be_pickled_into_the_open() -> None:
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        pickle.dumps(model("openai", CANARY))


# ---- turns -----------------------------------------------------------------------------------------------------------


def _files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


async def _turn(folder: Path, asked: HttpModel | Fallback | RecordedModel) -> tuple[hf.TurnOutcome, str]:
    """One turn on a store in `folder`; its outcome, and all that an observer, a reader and a thief of the disk see."""
    agent = hf.Agent("helper", model=asked)
    seen: list[object] = []
    async with hf.open(folder / "store.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("Hello?")
        async for event in turn.events():
            seen += [event, msgspec.json.encode(event)]
        outcome = await turn.outcome()
        seen += [outcome, msgspec.json.encode(outcome), runtime, session, turn]
        seen.append(_files(folder).decode("latin-1"))
    return outcome, repr(seen) + _files(folder).decode("latin-1")


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_that_completes_keeps_the_key_nowhere(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], str]
) -> None:
    async with FakeProvider([text("Hello.")], chunks=3) as provider:
        place = resolve_endpoint("openai-chat", base_url=f"{provider.url}/v1")
        asked = HttpModel(place, "m", load_dialect("chat"), api_key=key_given(way, "openai-chat", monkeypatch))
        outcome, seen = await _turn(tmp_path, asked)
        assert CANARY in repr(provider.requests[0].headers)
    assert outcome.text == "Hello."
    assert not leaked(seen)
    assert not leaked(logged())


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_turn_that_fails_keeps_the_key_nowhere(case: str, tmp_path: Path, logged: Callable[[], str]) -> None:
    outcome, seen = await _turn(tmp_path, model("openai-chat", CANARY, Echo(REFUSALS[case])))
    assert outcome.status == "failed"
    assert not leaked(seen)
    assert not leaked(logged())


async def test_a_turn_that_was_tried_again_keeps_the_key_nowhere(tmp_path: Path, logged: Callable[[], str]) -> None:
    # Before an answer, in the middle of one that was shown already, and then one that is good.
    faults = [HttpError(500, message=f"broke on {CANARY}"), ErrorFrame(2, message=f"choked on {CANARY}")]
    async with FakeProvider([text("Hello, you.")], faults=faults, chunks=4) as provider:
        place = resolve_endpoint("openai-chat", base_url=f"{provider.url}/v1")
        asked = HttpModel(place, "m", load_dialect("chat"), api_key=CANARY, retry=Retry(first=0.001))
        outcome, seen = await _turn(tmp_path, asked)
        assert len(provider.requests) == 3
    assert outcome.text == "Hello, you."
    assert not leaked(seen)
    assert not leaked(logged())


async def test_a_turn_that_another_model_took_over_keeps_the_key_nowhere(tmp_path: Path) -> None:
    asked = Fallback([model("openai-chat", CANARY, Echo(refusal())), ScriptedModel([text("I can.")])])
    outcome, seen = await _turn(tmp_path, asked)
    assert outcome.text == "I can."
    assert not leaked(seen)


# ---- recordings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_recording_never_has_the_key_that_the_provider_repeats(provider: str, case: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    asked = RecordedModel(path, model(provider, CANARY, Echo(REFUSALS[case])), mode="record")
    with pytest.raises(ModelError):
        asyncio.run(asked.respond(QUESTION))
    written = path.read_text()
    assert not leaked(written)
    assert not leaked(json.dumps(json.loads(written), ensure_ascii=False))


# ---- the command line ------------------------------------------------------------------------------------------------


async def test_the_command_line_never_shows_the_key(programs: Programs, tmp_path: Path) -> None:
    def echo(request: ProviderRequest) -> HttpError:
        return HttpError(401, message=f"bad key {request.headers['authorization']}")

    environment = {**os.environ, "OPENAI_API_KEY": CANARY}
    async with FakeProvider([text("hi")], faults=echo) as provider:
        probe = ("test", "openai-chat:m", f"--base-url={provider.url}/v1")
        for arguments in ((), ("--json",), probe, (*probe, "--json")):
            program = Program("holdfast", ("models", *arguments), tmp_path, environment=environment)
            done = await asyncio.to_thread(run, programs, program)
            assert done.stdout
            assert not leaked(done.stdout + done.stderr)
        assert CANARY in repr(provider.requests[0].headers)
