"""`holdfast models`: what is known, which keys are set, and whether a model really answers."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest
from tests.programs import Program, run

from holdfast.messages import Usage
from holdfast.models.endpoints import ENDPOINTS
from holdfast.testing import Disconnect, ErrorFrame, FakeProvider, HttpError, ProviderRequest, call, reply, text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.programs import Programs

KEY = "canary-3b1e77c0a9d2"
CALL = call("report_colour", colour="blue")
ANSWER = [reply("Hello there.", CALL)]


class Done(NamedTuple):
    code: int | None
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def states(self) -> dict[str, str]:
        return {check["name"]: check["state"] for check in self.json["checks"]}


class Models(Protocol):
    async def __call__(self, *arguments: str, **environment: str) -> Done: ...


class Probe(Protocol):
    async def __call__(self, provider: FakeProvider, *arguments: str, **environment: str) -> Done: ...


def _bare() -> dict[str, str]:
    """The environment without anything that sets up a provider."""
    known = {name for found in ENDPOINTS.values() for name in (*found.keys, *found.variables)}
    return {name: value for name, value in os.environ.items() if name not in known | {"NO_COLOR"}}


@pytest.fixture
def models(tmp_path: Path, programs: Programs) -> Models:
    """`holdfast models` with these arguments and variables."""

    async def asked(*arguments: str, **environment: str) -> Done:
        given = {**_bare(), **environment}
        program = Program("holdfast", ("models", *arguments), tmp_path, environment=given)
        done = await asyncio.to_thread(run, programs, program)
        return Done(done.returncode, done.stdout, done.stderr)

    return asked


@pytest.fixture
def probe(models: Models) -> Probe:
    """`holdfast models test` against a provider."""

    async def asked(provider: FakeProvider, *arguments: str, **environment: str) -> Done:
        address = f"--base-url={provider.url}/v1"
        return await models("test", "openai-chat:small", address, *arguments, **({"OPENAI_API_KEY": KEY} | environment))

    return asked


# ---- the list --------------------------------------------------------------------------------------------------------


async def test_every_known_provider_is_listed_with_its_dialect_and_its_key(models: Models) -> None:
    done = await models("--json")
    assert done.code == 0
    assert {line["provider"]: line["dialect"] for line in done.json} == {
        name: known.dialect for name, known in ENDPOINTS.items()
    }
    anthropic = next(line for line in done.json if line["provider"] == "anthropic")
    assert anthropic == {
        "provider": "anthropic",
        "dialect": "anthropic",
        "base_url": "https://api.anthropic.com",
        "variables": ["ANTHROPIC_BASE_URL"],
        "keys": ["ANTHROPIC_API_KEY"],
        "key": None,
        "ready": False,
    }


async def test_a_key_that_is_set_is_named_and_never_shown(models: Models) -> None:
    done = await models("--json", GOOGLE_API_KEY=KEY)
    google = next(line for line in done.json if line["provider"] == "google")
    assert (google["key"], google["ready"]) == ("GOOGLE_API_KEY", True)
    assert KEY not in done.out + done.err


async def test_people_get_a_table(models: Models) -> None:
    done = await models(GROQ_API_KEY=KEY)
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert lines["PROVIDER"].split() == ["PROVIDER", "DIALECT", "KEY", "ADDRESS"]
    assert "GROQ_API_KEY is set" in lines["groq"]
    assert "MISTRAL_API_KEY is not set" in lines["mistral"]
    assert KEY not in done.out


async def test_an_empty_variable_is_not_set(models: Models) -> None:
    done = await models("--json", GROQ_API_KEY="")
    assert next(line["key"] for line in done.json if line["provider"] == "groq") is None


async def test_a_server_of_ones_own_needs_no_key(models: Models) -> None:
    done = await models("--json")
    assert next(line["ready"] for line in done.json if line["provider"] == "ollama")


async def test_an_address_from_the_environment_is_the_one_that_is_listed(models: Models) -> None:
    done = await models("--json", OLLAMA_HOST="http://box:1234")
    assert next(line["base_url"] for line in done.json if line["provider"] == "ollama") == "http://box:1234/v1"


async def test_a_provider_without_an_address_is_not_ready(models: Models) -> None:
    done = await models("--json", AZURE_OPENAI_API_KEY=KEY)
    azure = next(line for line in done.json if line["provider"] == "azure")
    assert (azure["base_url"], azure["ready"]) == (None, False)


async def test_people_read_which_variables_an_address_is_missing(models: Models) -> None:
    done = await models(GOOGLE_CLOUD_PROJECT="shop-1")
    (vertex,) = [line for line in done.out.splitlines() if line.startswith("vertex")]
    assert vertex.endswith("not set: GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION, or base_url=")


async def test_an_address_that_is_made_of_variables_is_listed(models: Models) -> None:
    done = await models("--json", GOOGLE_CLOUD_PROJECT="shop-1", GOOGLE_CLOUD_LOCATION="global")
    (found,) = [line["base_url"] for line in done.json if line["provider"] == "vertex"]
    assert found == "https://aiplatform.googleapis.com/v1/projects/shop-1/locations/global/publishers/google"


# ---- one call --------------------------------------------------------------------------------------------------------


async def test_a_model_that_works_passes_every_check(probe: Probe) -> None:
    async with FakeProvider(ANSWER, chunks=3) as provider:
        done = await probe(provider, "--json")
    assert done.code == 0, done.out + done.err
    assert done.states == dict.fromkeys(("connect", "auth", "answer", "stream", "usage", "tool call"), "ok")
    assert done.json["text"] == "Hello there."
    assert done.json["ok"]
    assert done.json["error"] is None


async def test_people_read_what_worked(probe: Probe) -> None:
    async with FakeProvider(ANSWER, chunks=3) as provider:
        done = await probe(provider)
    words = [line.split()[:2] for line in done.out.splitlines()]
    assert words[0] == ["openai-chat:small"]
    assert ["connect", "ok"] in words
    assert "it said: Hello there." in done.out


async def test_the_prompt_can_be_chosen(probe: Probe) -> None:
    async with FakeProvider(ANSWER) as provider:
        await probe(provider, "--prompt", "Which day is it?")
        assert "Which day is it?" in provider.requests[0].body.decode()


async def test_the_second_request_offers_a_tool(probe: Probe) -> None:
    async with FakeProvider(ANSWER) as provider:
        await probe(provider)
        first, second = provider.requests
    assert "tools" not in first.json
    assert "tools" in second.json


async def test_the_cost_is_told_where_a_price_is_known(models: Models) -> None:
    async with FakeProvider([reply("Hi", CALL, usage=Usage(100, 10))]) as provider:
        address = f"--base-url={provider.url}/v1"
        done = await models("test", "openai-chat:gpt-4o", address, "--json", OPENAI_API_KEY=KEY)
    assert done.json["cost"] > 0
    assert done.json["usage"] == {"input": 200, "output": 20}


async def test_an_unknown_price_is_not_told_as_zero(probe: Probe) -> None:
    async with FakeProvider(ANSWER) as provider:
        done = await probe(provider, "--json")
    assert done.json["cost"] is None


async def test_nobody_at_the_address_is_a_failed_connection(models: Models) -> None:
    async with FakeProvider(ANSWER) as provider:
        gone = f"--base-url={provider.url}/v1"
    done = await models("test", "ollama:small", gone, "--json")
    assert done.code == 1
    assert (done.states["connect"], done.states["auth"]) == ("failed", "skipped")
    assert done.json["error"] == "network"


async def test_a_refused_key_is_a_failed_authentication(probe: Probe) -> None:
    async with FakeProvider(ANSWER, faults=[HttpError(401, message="who are you?")]) as provider:
        done = await probe(provider, "--json")
    assert done.code == 1
    assert (done.states["connect"], done.states["auth"], done.states["answer"]) == ("ok", "failed", "skipped")
    assert done.json["error"] == "authentication"
    assert "who are you?" in done.json["message"]


async def test_a_missing_key_is_told_before_anything_is_sent(probe: Probe) -> None:
    async with FakeProvider(ANSWER) as provider:
        done = await probe(provider, "--json", OPENAI_API_KEY="")
        assert not provider.requests
    assert done.code == 1
    assert (done.states["connect"], done.states["auth"]) == ("skipped", "failed")
    assert "OPENAI_API_KEY" in done.json["message"]


async def test_an_unknown_model_is_a_failed_answer(probe: Probe) -> None:
    async with FakeProvider(ANSWER, faults=[HttpError(404, message="no such model")]) as provider:
        done = await probe(provider, "--json")
    assert done.code == 1
    assert (done.states["connect"], done.states["auth"], done.states["answer"]) == ("ok", "skipped", "failed")
    assert done.json["error"] == "not_found"


async def test_a_tool_that_is_not_called_is_named(probe: Probe) -> None:
    async with FakeProvider([text("I would rather talk.")]) as provider:
        done = await probe(provider, "--json")
    assert done.code == 1
    assert [name for name, state in done.states.items() if state == "failed"] == ["tool call"]
    assert done.json["error"] == "tool_not_called"


async def test_an_error_at_the_tool_call_leaves_what_worked_before(probe: Probe) -> None:
    def at_tools(request: ProviderRequest) -> HttpError | None:
        return HttpError(400, message="tools are not served here") if "tools" in request.json else None

    async with FakeProvider(ANSWER, faults=at_tools) as provider:
        done = await probe(provider, "--json")
    assert done.code == 1
    assert done.states["answer"] == "ok"
    assert done.states["tool call"] == "failed"
    assert done.json["error"] == "bad_request"


async def test_an_error_inside_the_stream_is_a_failed_answer(probe: Probe) -> None:
    faults = [ErrorFrame()] * 10
    async with FakeProvider(ANSWER, faults=faults, chunks=4) as provider:
        done = await probe(provider, "--json")
    assert done.code == 1
    assert (done.states["connect"], done.states["answer"]) == ("ok", "failed")


async def test_a_provider_that_hangs_up_is_a_failed_connection(probe: Probe) -> None:
    async with FakeProvider(ANSWER, faults=[Disconnect()] * 10) as provider:
        done = await probe(provider, "--json")
    assert done.code == 1
    assert done.json["error"] == "network"


async def test_people_read_the_name_of_the_error_last(probe: Probe) -> None:
    async with FakeProvider(ANSWER, faults=[HttpError(403, message="not yours")]) as provider:
        done = await probe(provider)
    assert done.code == 1
    assert done.out.splitlines()[-1] == "failed: permission"


async def test_a_key_that_the_provider_repeats_is_not_shown(probe: Probe) -> None:
    faults = [HttpError(401, message=f"bad key {KEY}")]
    async with FakeProvider(ANSWER, faults=faults * 2) as provider:
        shown = [await probe(provider), await probe(provider, "--json")]
    assert all(KEY not in done.out + done.err for done in shown)


@pytest.mark.parametrize("name", ["nobody:model", "openai", "openai:", ":", ""])
async def test_a_name_that_names_no_model_is_a_wrong_call(models: Models, name: str) -> None:
    done = await models("test", name)
    assert done.code == 2
    assert "names no model" in done.err
    assert "Traceback" not in done.err


async def test_an_address_that_is_none_is_a_wrong_call(models: Models) -> None:
    done = await models("test", "openai:small", "--base-url", "nowhere")
    assert done.code == 2
    assert "base_url" in done.err
