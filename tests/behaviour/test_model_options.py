"""`hf.model(name, ...)`: what may be said beside the name, for endpoints of one's own and for those that are known."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.every import every

import holdfast as hf
from holdfast.errors import InvalidArgument, ModelError
from holdfast.messages import ModelRequest, Text, UserMessage
from holdfast.models import register
from holdfast.models.http import HttpModel
from holdfast.testing import FakeProvider, HttpError, ScriptedModel, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

QUESTION = ModelRequest(messages=(UserMessage("m1", (Text("Hello?"),)),), settings=hf.Settings(max_output_tokens=9))
NOWHERE = "http://127.0.0.1:9/v1"


def http(name: str = "mine:small", **options: Any) -> HttpModel:
    given: dict[str, Any] = {"base_url": NOWHERE} | options
    model = hf.model(name, **given)
    assert isinstance(model, HttpModel)
    return model


async def answer(model: hf.Model) -> str:
    async for event in model.stream(QUESTION):
        if isinstance(event, hf.messages.StreamEnd):
            return event.reply.text
    return ""


@pytest.mark.parametrize(
    ("spoken", "path"),
    [
        ("anthropic", "/v1/messages"),
        ("responses", "/responses"),
        ("chat", "/chat/completions"),
        ("google", "/v1beta/models/small:streamGenerateContent?alt=sse"),
    ],
)
async def test_an_endpoint_of_ones_own_can_speak_any_dialect(spoken: str, path: str) -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        assert await answer(http(base_url=provider.url, dialect=spoken)) == "Hello."
        assert provider.requests[0].path == path


async def test_flags_say_what_an_endpoint_does_differently() -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        await answer(http(base_url=f"{provider.url}/v1", flags=["max_tokens"]))
        assert provider.requests[0].json["max_tokens"] == 9


async def test_headers_go_out_with_every_request() -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        await answer(http(base_url=f"{provider.url}/v1", headers={"X-Team": "blue"}))
        assert provider.requests[0].headers["x-team"] == "blue"


async def test_a_retry_policy_is_followed() -> None:
    async with FakeProvider([text("Hello.")], faults=[HttpError(500)]) as provider:
        model = http(base_url=f"{provider.url}/v1", retry=hf.Retry(attempts=1))
        with pytest.raises(ModelError):
            await answer(model)
        assert len(provider.requests) == 1


def test_timeouts_are_those_that_were_given() -> None:
    assert http(timeouts=hf.Timeouts(idle=7)).timeouts.idle == 7


async def test_limits_are_those_that_were_given() -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        # A second call would have to wait, and nobody may.
        limits = hf.CallLimits(per_minute=0.001, burst=1, waiting=0)
        model = http(base_url=f"{provider.url}/v1", limits=limits, retry=hf.Retry(attempts=1))
        assert await answer(model) == "Hello."
        with pytest.raises(ModelError) as caught:
            await answer(model)
        assert caught.value.kind == "overloaded"


def test_a_known_name_keeps_what_is_not_given() -> None:
    known, given = http("groq:m", base_url=None), http("groq:m", base_url=None, headers={"x-team": "blue"})
    assert given.endpoint.flags == known.endpoint.flags
    assert given.endpoint.base_url == known.endpoint.base_url
    assert (given.retry, given.timeouts) == (hf.Retry(), hf.Timeouts())


@every(
    ("option", "value", "words"),
    [
        ("retry", 3, "a Retry"),
        ("retry", hf.Timeouts(), "a Retry"),
        ("timeouts", 30.0, "a Timeouts"),
        ("limits", 10, "a CallLimits"),
        ("dialect", "klingon", "one of anthropic, responses, chat, google"),
        ("flags", "max_tokens", "a list of words"),
        ("flags", 7, "a list of words"),
        ("flags", [7], "a list of words"),
        ("flags", ["max_tokenz"], "one of the chat dialect"),
        ("headers", {"a": "b\nc"}, "one line"),
        ("api_key", 7, "a string, or a function"),
        ("base_url", 7, "an address"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_by_name(option: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        http(**{option: value})
    assert caught.value.what.startswith(("the flag", "the header", option))


def test_a_flag_of_another_dialect_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="anthropic dialect"):
        http(dialect="anthropic", flags=["max_tokens"])


OPTIONS: dict[str, Any] = {
    "base_url": NOWHERE,
    "api_key": "k",
    "dialect": "chat",
    "flags": [],
    "headers": {},
    "retry": hf.Retry(),
    "timeouts": hf.Timeouts(),
    "limits": hf.CallLimits(),
}


@every("option", OPTIONS)
def test_what_was_set_up_already_takes_no_options(option: str) -> None:
    register("ready-made", lambda _name: ScriptedModel([]))
    for model in (ScriptedModel([]), ["groq:a", "groq:b"], "ready-made:x"):
        with pytest.raises(InvalidArgument, match=f"where {option} is set"):
            hf.model(model, **{option: OPTIONS[option]})


async def test_vertex_takes_its_token_from_a_function_at_each_call() -> None:
    tokens = iter(["first", "second"])
    async with FakeProvider([text("Hello.")]) as provider:
        model = http("vertex:gemini-3-pro", base_url=f"{provider.url}/v1/p", api_key=lambda: next(tokens))
        await answer(model)
        await answer(model)
        assert [asked.headers["authorization"] for asked in provider.requests] == ["Bearer first", "Bearer second"]
        assert provider.requests[0].path.startswith("/v1/p/models/gemini-3-pro:streamGenerateContent")


@pytest.mark.parametrize("spoken", ["anthropic", "responses", "chat", "google"])
async def test_a_reply_can_be_asked_for_whole(spoken: str) -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        assert await answer(http(base_url=provider.url, dialect=spoken, stream=False)) == "Hello."
        asked = provider.requests[0]
        assert (asked.asked.form, asked.headers["accept"]) == ("whole", "application/json")


def test_whole_replies_do_not_change_what_else_is_known_of_an_endpoint() -> None:
    usual, whole = http("groq:m", base_url=None), http("groq:m", base_url=None, stream=False)
    assert whole.endpoint.flags == usual.endpoint.flags | {"no_stream"}


def test_stream_is_a_yes_or_a_no() -> None:
    with pytest.raises(InvalidArgument, match="stream"):
        http(stream="no")


# ---- Azure, gateways -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "path"),
    [
        ("azure:gpt-4o", None, "/openai/v1/chat/completions"),
        ("azure:gpt-4o", "preview", "/openai/v1/chat/completions?api-version=preview"),
        ("azure:gpt-4o", "2024-10-21", "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21"),
        ("azure-deployments:gpt-4o", None, "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21"),
        (
            "azure-deployments:gpt-4o",
            "2025-03-01-preview",
            "/openai/deployments/gpt-4o/chat/completions?api-version=2025-03-01-preview",
        ),
        ("azure-responses:gpt-5", "2025-04-01-preview", "/openai/responses?api-version=2025-04-01-preview"),
    ],
)
@pytest.mark.parametrize("given", ["base_url", "variable"])
async def test_a_version_of_the_api_of_azure_decides_the_address(
    name: str, version: str | None, path: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeProvider([text("ok")]) as provider:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", provider.url)
        address = provider.url if given == "base_url" else None
        model = hf.model(name, base_url=address, api_version=version, api_key="not-a-real-key")
        assert await answer(model) == "ok"
        assert provider.requests[0].path == path


async def test_an_address_of_the_newer_api_of_azure_serves_an_older_version_too() -> None:
    async with FakeProvider([text("ok")]) as provider:
        address = f"{provider.url}/openai/v1"
        await answer(http("azure:gpt-4o", base_url=address, api_version="2024-10-21", api_key="not-a-real-key"))
        assert provider.requests[0].path.startswith("/openai/deployments/gpt-4o/chat/completions?")


@pytest.mark.parametrize(
    ("name", "version"),
    [("azure:m", "yesterday"), ("azure:m", 2024), ("azure-deployments:m", "preview"), ("openai:m", "2024-10-21")],
)
def test_a_version_that_can_not_be_meant_is_refused(name: str, version: Any) -> None:
    with pytest.raises(InvalidArgument, match="api_version"):
        http(name, api_version=version)


async def _token() -> str:
    return "entra-token-1234567890"


@pytest.mark.parametrize(
    "provided", [_token, lambda: "entra-token-1234567890", partial(_token)], ids=["async", "sync", "both"]
)
async def test_a_token_provider_gives_a_bearer_token(provided: Any) -> None:
    async with FakeProvider([text("ok")]) as provider:
        assert await answer(http("azure:gpt-4o", base_url=provider.url, token_provider=provided)) == "ok"
        headers = provider.requests[0].headers
    assert headers["authorization"] == "Bearer entra-token-1234567890"
    assert "api-key" not in headers


async def test_a_token_provider_that_blocks_does_not_hold_up_the_loop() -> None:
    threads: list[int] = []

    def token() -> str:
        threads.append(threading.get_ident())
        return "entra-token-1234567890"

    async with FakeProvider([text("ok")]) as provider:
        await answer(http("azure:gpt-4o", base_url=provider.url, token_provider=token))
    assert threads != [threading.get_ident()]


async def test_a_token_that_expired_is_asked_for_again_once() -> None:
    given = iter(["old-token-1234567890", "new-token-1234567890"])
    async with FakeProvider([text("ok")], faults=[HttpError(401)]) as provider:
        model = http("azure:gpt-4o", base_url=provider.url, token_provider=lambda: next(given))
        assert await answer(model) == "ok"
        sent = [request.headers["authorization"] for request in provider.requests]
    assert sent == ["Bearer old-token-1234567890", "Bearer new-token-1234567890"]


async def test_a_token_that_is_refused_twice_is_refused() -> None:
    async with FakeProvider([text("ok")], faults=[HttpError(401)] * 4) as provider:
        with pytest.raises(ModelError) as caught:
            await answer(http("azure:gpt-4o", base_url=provider.url, token_provider=_token))
        assert len(provider.requests) == 2
    assert caught.value.kind == "authentication"
    assert "entra-token" not in str(caught.value)


async def test_a_key_that_is_refused_is_not_asked_for_again() -> None:
    async with FakeProvider([text("ok")], faults=[HttpError(401)] * 4) as provider:
        with pytest.raises(ModelError):
            await answer(http("azure:gpt-4o", base_url=provider.url, api_key="not-a-real-key"))
        assert len(provider.requests) == 1


@pytest.mark.parametrize(
    "wrong", [{"token_provider": "a-token"}, {"token_provider": _token, "api_key": "k"}], ids=["a text", "beside a key"]
)
def test_a_token_provider_is_a_function_and_stands_alone(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="token_provider"):
        http(**wrong)


@pytest.mark.parametrize(
    ("spoken", "path"),
    [
        ("anthropic", "/v1/messages?tenant=a+b"),
        ("responses", "/responses?tenant=a+b"),
        ("chat", "/chat/completions?tenant=a+b"),
        ("google", "/v1beta/models/small:streamGenerateContent?alt=sse&tenant=a+b"),
    ],
)
async def test_a_query_is_put_to_every_address(spoken: str, path: str) -> None:
    async with FakeProvider([text("ok")]) as provider:
        await answer(http(base_url=provider.url, dialect=spoken, query={"tenant": "a b"}, api_key="not-a-real-key"))
        assert provider.requests[0].path == path


@pytest.mark.parametrize("query", ["a=b", {"a": 1}, {"": "b"}, [("a", "b")]], ids=str)
def test_a_query_is_a_mapping_of_texts(query: Any) -> None:
    with pytest.raises(InvalidArgument, match="query"):
        http(query=query)


async def test_a_query_is_in_no_error() -> None:
    async with FakeProvider([text("ok")], faults=[HttpError(404)]) as provider:
        with pytest.raises(ModelError) as caught:
            await answer(http(base_url=f"{provider.url}/v1", query={"sig": "secret-1234567890"}))
    assert "secret" not in str(caught.value)


async def test_headers_of_a_function_are_made_for_each_try() -> None:
    made = iter(range(1, 9))

    async def signed() -> dict[str, str]:
        return {"X-Signature": f"signed-{next(made)}"}

    for headers in (signed, lambda: {"x-signature": f"signed-{next(made)}"}):
        async with FakeProvider([text("ok")], faults=[HttpError(503, retry_after=0.001)]) as provider:
            model = http(base_url=f"{provider.url}/v1", headers=headers, retry=hf.Retry(first=0.001))
            assert await answer(model) == "ok"
            first, second = [request.headers["x-signature"] for request in provider.requests]
        assert first != second


@pytest.mark.parametrize("given", [{"authorization": "Bearer x"}, {"x": "a\nb"}, None, "x"], ids=str)
async def test_headers_that_a_function_must_not_give_are_refused(given: Any) -> None:
    async with FakeProvider([text("ok")]) as provider:
        with pytest.raises(ModelError, match="the function that gives the headers for mine failed") as caught:
            await answer(http(base_url=f"{provider.url}/v1", headers=lambda: given))
        assert not provider.requests
    assert caught.value.kind == "headers"


async def test_what_a_function_for_headers_raises_is_not_repeated() -> None:
    def broken() -> dict[str, str]:
        raise ValueError("secret-1234567890")

    with pytest.raises(ModelError, match="failed with ValueError") as caught:
        await answer(http(headers=broken))
    assert "secret" not in str(caught.value)


async def test_a_header_of_a_function_is_taken_out_of_an_error_that_repeats_it() -> None:
    faults = [HttpError(400, message="bad signature signed-by-me-1234567890")]
    async with FakeProvider([text("ok")], faults=faults) as provider:
        with pytest.raises(ModelError) as caught:
            await answer(
                http(base_url=f"{provider.url}/v1", headers=lambda: {"x-signature": "signed-by-me-1234567890"})
            )
    assert "bad signature [key]" in caught.value.message


# ---- a certificate and a proxy of one's own --------------------------------------------------------------------------

CHILD = """
import asyncio, sys
import holdfast as hf

async def main():
    model = hf.model("mine:m", base_url=sys.argv[1], retry=hf.Retry(attempts=1))
    try:
        print((await hf.run(hf.Agent("a", model=model), "hi")).text)
    except Exception as error:
        print(error)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that nobody but us knows, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    path = tmp_path_factory.mktemp("authority") / "ca.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", path.with_suffix(".key"), "-out", path], check=True, capture_output=True)
    return path


async def run_child(url: str, **environ: str) -> str:
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, url), env={**kept, **environ}, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await child.communicate()
    return said.decode().strip()


@asynccontextmanager
async def secured(authority: Path) -> AsyncGenerator[tuple[int, list[str]], None]:
    """A server behind TLS, and a proxy that opens tunnels to it; what was asked of the proxy."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, authority.with_suffix(".key"))
    body = b'{"choices":[{"message":{"content":"safe"},"finish_reason":"stop"}]}'
    tunnels: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnels.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        inner_reader, inner_writer = await asyncio.open_connection("localhost", port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(answer, "localhost", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    tunnels.append(f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    async with server, proxy:
        yield port, tunnels


async def test_a_certificate_authority_of_ones_own_is_named_by_the_environment(authority: Path) -> None:
    async with secured(authority) as (port, _):
        assert await run_child(f"https://localhost:{port}/v1", SSL_CERT_FILE=str(authority)) == "safe"


async def test_a_certificate_of_an_unknown_authority_is_refused(authority: Path) -> None:
    async with secured(authority) as (port, _):
        assert "safe" not in await run_child(f"https://localhost:{port}/v1")


async def test_a_proxy_carries_a_connection_with_a_certificate_of_ones_own(authority: Path) -> None:
    async with secured(authority) as (port, tunnels):
        url = f"https://localhost:{port}/v1"
        assert await run_child(url, SSL_CERT_FILE=str(authority), HTTPS_PROXY=tunnels[0]) == "safe"
    assert tunnels[1:] == [f"CONNECT localhost:{port} HTTP/1.1"]
