"""An agent that reads the web is talked into everything; it gets to public pages, and nowhere else, and no further.

The servers here listen on the loopback, so each test that means to reach one writes its place into `allow_private`,
as the host of an agent would.
"""

from __future__ import annotations

import asyncio
import gzip
import shutil
import socket
import ssl
import subprocess
import tracemalloc
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.errors import InvariantBroken
from holdfast.testing import ScriptedModel, call, text
from holdfast.toolkits.web import ContentRefused, FetchFailed, PageFailed, UrlInvalid, UrlRefused, web
from holdfast.toolkits.web.fetch import is_own_address, open_response
from holdfast.toolkits.web.urls import parse_url
from holdfast.tools import Bound

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from holdfast.tools import AnyTool

PNG = b"\x89PNG\r\n\x1a\n...."
WAITS = 10


def page(body: bytes | str, *headers: str, status: str = "200 OK", kind: str = "text/html") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def redirect(location: str, status: int = 302) -> bytes:
    return page("elsewhere", f"Location: {location}", "Set-Cookie: id=1; Path=/", status=f"{status} Found")


class Site:
    """A server that says what it is told to, byte by byte, and remembers who came."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[str] = []
        self.answers: dict[str, bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]] = {}

    def __setitem__(self, path: str, said: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.answers[path] = said

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.requests.append(request)
            said = self.answers.get(request.split(" ")[1], page("nothing here", status="404 Not Found"))
            if isinstance(said, bytes):
                writer.write(said)
                await writer.drain()
            else:
                await said(writer)
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


@asynccontextmanager
async def site(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncGenerator[Site, None]:
    made = Site()
    server = await asyncio.start_server(made.serve, host, 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


class Names:
    """Looks up names: each time the next answer, the last one for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): said for name, said in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        said = self.answers.get(host)
        if said is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return said.pop(0) if len(said) > 1 else said[0]


async def fetch(url: str, *, start: int = 0, raw: bool = False, **said: Any) -> Any:
    (tool,) = web(**said)
    bound = tool.bind({"url": url, "start": start, "raw": raw})
    assert isinstance(bound, Bound)
    return await asyncio.wait_for(tool.call(bound), WAITS)


# ---- what is not public is not reached -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1.", "2130706433", "0x7f000001", "017700000001", "127.1", "0x7f.0.0.1", "0177.0.0.1"),
        *("①②⑦.⓪.⓪.1", "127。0。0。1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]"),
        *("[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::]", "0", "localhost", "LOCALHOST.", "x@127.0.0.1"),
        *("example.com@127.0.0.1", "127.0.0.1%00.example.com", "127.0.0.1\\.example.com", "127.0.0.1\x00.example.com"),
    ],
)  # fmt: skip
async def test_no_way_to_write_the_loopback_leads_there(host: str) -> None:
    async with site() as inside:
        inside["/"] = page("secret")
        with pytest.raises((UrlInvalid, UrlRefused)):
            await fetch(inside.url(host=host), ports=range(1, 65_536))
    assert inside.requests == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fe80::1%eth0", "100.64.0.1"]
)
async def test_no_name_leads_inside(address: str) -> None:
    async with site() as inside:
        with pytest.raises(UrlRefused):
            await fetch(inside.url(host="a.example"), resolver=Names(a_example=[[address]]), ports=[inside.port])
    assert inside.requests == []


async def test_an_inside_address_among_public_ones_is_not_dialled() -> None:
    async with site() as inside:
        names = Names(a_example=[["1.1.1.1", "127.0.0.1"]])
        with pytest.raises(UrlRefused):
            await fetch(inside.url(host="a.example"), resolver=names, ports=[inside.port])
    assert inside.requests == []


async def test_a_name_is_looked_up_once_and_what_was_checked_is_dialled() -> None:
    async with site() as home:
        home["/"] = page("<p>Home")
        names = Names(a_example=[["127.0.0.1"], ["10.0.0.1"]])  # whoever asks twice is sent elsewhere
        found = await fetch(home.url(host="a.example"), resolver=names, allow_private=[f"a.example:{home.port}"])
    assert found.endswith("Home")
    assert names.asked == ["a.example"]
    assert f"Host: a.example:{home.port}" in home.requests[0]


async def test_an_ipv6_address_that_may_be_visited_is_reached() -> None:
    try:
        async with site(host="::1") as home:
            home["/"] = page("<p>Home")
            found = await fetch(home.url(host="[0::1]"), allow_private=[f"[::1]:{home.port}"])
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert found.startswith(f"URL: http://[::1]:{home.port}/")


async def test_an_address_that_was_not_checked_gets_no_socket() -> None:
    async with site() as inside:
        with pytest.raises(InvariantBroken):
            async with open_response(parse_url(inside.url()), [ip_address("1.1.1.1")], None, "test"):
                pass
    assert inside.requests == []


def test_an_address_of_this_machine_is_known_for_one() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no way out")
        own = probe.getsockname()[0]
    assert is_own_address(ip_address(own))
    assert not is_own_address(ip_address("192.0.2.1"))


# ---- redirects -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "location",
    [
        *("http://169.254.169.254/latest/meta-data/", "//127.0.0.1:{port}/secret", "http://[::ffff:7f00:1]:{port}/secret"),
        *("http://2130706433:{port}/secret", "http://localhost:{port}/secret", "http://inside.example:{port}/secret"),
        *("http://user:pw@inside.example/", "file:///etc/passwd", "ftp://example.com/", "http://[", "http://inside\x01/"),
        *("gopher://127.0.0.1:{port}/secret", "http://127.1:{port}/secret", "http://\xff\xfe.example/"),
    ],
)  # fmt: skip
async def test_a_redirect_leads_no_further_than_a_url(location: str) -> None:
    async with site() as home, site() as inside:
        home["/"] = redirect(location.format(port=inside.port))
        inside["/secret"] = page("secret")
        names = Names(inside_example=[["127.0.0.1"]], localhost=[["127.0.0.1"]])
        with pytest.raises((UrlRefused, FetchFailed)):
            await fetch(home.url(), allow_private=[home.place], ports=range(1, 65_536), resolver=names)
    assert len(home.requests) == 1
    assert inside.requests == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_where_one_may_go_is_followed(status: int) -> None:
    async with site() as home:
        home["/"] = redirect("/there?x=1", status)
        home["/there?x=1"] = page("<p>There")
        found = await fetch(home.url(), allow_private=[home.place])
    assert found.startswith(f"URL: {home.url('/there?x=1')} (after 1 redirect)")


async def test_nothing_is_carried_from_one_request_to_the_next() -> None:
    async with site() as home:
        home["/"] = redirect("/there")
        home["/there"] = page("<p>There")
        await fetch(home.url(), allow_private=[home.place])
    sent = home.requests[1].lower()
    assert not [name for name in ("cookie:", "authorization:", "referer:", "origin:") if name in sent]


async def test_redirects_without_end_end() -> None:
    async with site() as home:
        home["/"] = redirect("/")
        with pytest.raises(FetchFailed, match="more than 3 redirects"):
            await fetch(home.url(), allow_private=[home.place], redirects=3)
    assert len(home.requests) == 4


async def test_a_redirect_to_a_host_that_is_not_allowed_is_refused() -> None:
    async with site() as home:
        home["/"] = redirect("http://other.example/")
        names = Names(other_example=[["1.1.1.1"]])
        with pytest.raises(UrlRefused, match="not among those"):
            await fetch(home.url(), allow=["good.example"], allow_private=[home.place], resolver=names)
    assert names.asked == []


# ---- encryption ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for `good.example`, and its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    place = tmp_path_factory.mktemp("tls")
    key, made = place / "key.pem", place / "cert.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", "2", "-subj", "/CN=good.example", "-addext", "subjectAltName=DNS:good.example"]
    command += ["-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    both = place / "both.pem"
    both.write_bytes(made.read_bytes() + key.read_bytes())
    return both


@pytest.fixture
def tls(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def there(home: Site, host: str) -> dict[str, Any]:
    return {"allow_private": [f"{host}:{home.port}"], "resolver": Names(**{host.replace(".", "_"): [["127.0.0.1"]]})}


async def test_a_certificate_is_checked_against_the_name_although_an_address_is_dialled(tls: ssl.SSLContext) -> None:
    async with site(tls) as home:
        home["/"] = page("<p>Safe")
        found = await fetch(home.url(host="good.example", scheme="https"), **there(home, "good.example"))
    assert found.endswith("Safe")


@pytest.mark.parametrize("host", ["other.example", "127.0.0.1"])
async def test_a_certificate_of_another_name_is_refused(tls: ssl.SSLContext, host: str) -> None:
    async with site(tls) as home:
        with pytest.raises(FetchFailed, match="certificate"):
            await fetch(home.url(host=host, scheme="https"), **there(home, host))
    assert home.requests == []


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with site(tls) as home:
        with pytest.raises(FetchFailed, match="certificate"):
            await fetch(home.url(host="good.example", scheme="https"), **there(home, "good.example"))
    assert home.requests == []


@pytest.mark.parametrize("downgrade", [False, True])
async def test_https_leads_to_http_only_where_that_is_allowed(tls: ssl.SSLContext, downgrade: bool) -> None:
    async with site(tls) as safe, site() as plain:
        safe["/"] = redirect(plain.url())
        plain["/"] = page("<p>Plain")
        said = there(safe, "good.example")
        said["allow_private"].append(plain.place)
        asked = fetch(safe.url(host="good.example", scheme="https"), downgrade=downgrade, **said)
        if downgrade:
            assert (await asked).endswith("Plain")
        else:
            with pytest.raises(UrlRefused, match="from https to http"):
                await asked
    assert len(plain.requests) == int(downgrade)


async def test_a_server_that_does_not_speak_https_is_told_as_that() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(page("Speak plainly.", status="400 Bad Request"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(FetchFailed, match="encrypted"):
            await fetch(f"https://{place}/", allow_private=[place])


# ---- nothing of the environment --------------------------------------------------------------------------------------


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password canary\n")
    netrc.chmod(0o600)
    async with site() as home, site() as proxy:
        home["/"] = page("<p>Home")
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("NETRC", str(netrc))
        assert (await fetch(home.url(), allow_private=[home.place])).endswith("Home")
    assert proxy.requests == []
    assert "authorization" not in home.requests[0].lower()


# ---- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "text/html", "application/json"])
async def test_a_bomb_is_cut_while_it_is_decompressed(kind: str) -> None:
    bomb = gzip.compress(b"a" * 100_000_000)
    async with site() as home:
        home["/"] = page(bomb, "Content-Encoding: gzip", kind=kind)
        tracemalloc.start()
        found = await fetch(home.url(), allow_private=[home.place], limit=200_000, characters=1000)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert "only the first 200,000 bytes were read" in found
    assert most < 8_000_000


async def test_a_body_without_end_is_cut_and_let_go() -> None:
    gone = asyncio.Event()

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        try:
            while True:
                writer.write(b"more and more\n" * 1000)
                await writer.drain()
        finally:
            gone.set()

    async with site() as home:
        home["/"] = endless
        found = await fetch(home.url(), allow_private=[home.place], limit=100_000, characters=1000)
        await asyncio.wait_for(gone.wait(), WAITS)
    assert "only the first 100,000 bytes" in found


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nx"])
async def test_a_server_that_takes_its_time_is_left_at_the_deadline(said: bytes) -> None:
    left = asyncio.Event()

    async def slow(writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await left.wait()

    async with site() as home:
        home["/"] = slow
        with pytest.raises(FetchFailed, match=r"longer than 0.3 s"):
            await fetch(home.url(), allow_private=[home.place], timeout=0.3)
        left.set()


async def test_a_lookup_that_never_ends_is_left_at_the_deadline() -> None:
    async def never(host: str) -> list[str]:
        await asyncio.Event().wait()
        return [host]

    with pytest.raises(FetchFailed, match="longer than"):
        await fetch("http://a.example/", resolver=never, timeout=0.1)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Type: text/plain\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        page(b"not gzip", "Content-Encoding: gzip"),
        page(gzip.compress(b"words" * 1000)[:-10], "Content-Encoding: gzip"),
    ],
    ids=["ssh", "nothing", "short", "headers", "chunks", "no gzip", "half gzip"],
)
async def test_an_answer_that_is_none_is_told_in_one_sentence(said: bytes) -> None:
    async with site() as home:
        home["/"] = said
        with pytest.raises(FetchFailed) as failed:
            await fetch(home.url(), allow_private=[home.place])
    assert len(str(failed.value)) < 300


async def test_an_encoding_that_was_not_asked_for_is_refused() -> None:
    async with site() as home:
        home["/"] = page(b"...", "Content-Encoding: br")
        with pytest.raises(ContentRefused, match="compressed as 'br'"):
            await fetch(home.url(), allow_private=[home.place])


async def test_a_picture_comes_as_a_file() -> None:
    async with site() as home:
        home["/a%20cat.png?x"] = page(PNG, kind="image/png")
        found = await fetch(home.url("/a%20cat.png?x"), allow_private=[home.place])
    assert isinstance(found, hf.File)
    assert (found.data, found.media_type, found.name) == (PNG, "image/png", "a cat.png")


async def test_a_file_over_the_limit_is_refused() -> None:
    async with site() as home:
        home["/"] = page(PNG + bytes(10_000), kind="image/png")
        with pytest.raises(ContentRefused, match="more than 1,000 bytes"):
            await fetch(home.url(), allow_private=[home.place], limit=1000)


async def test_another_binary_is_refused_by_its_name() -> None:
    async with site() as home:
        home["/"] = page(b"PK\x03\x04", kind="application/zip")
        with pytest.raises(ContentRefused, match="application/zip"):
            await fetch(home.url(), allow_private=[home.place])


async def test_json_comes_as_it_is_however_deep() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    async with site() as home:
        home["/"] = page(deep, kind="application/json")
        found = await fetch(home.url(), allow_private=[home.place], characters=300_000)
    assert found.endswith(f"\n\n{deep}")


async def test_the_source_of_a_page_is_given_when_it_is_asked_for() -> None:
    async with site() as home:
        home["/"] = page("<p>Home")
        assert (await fetch(home.url(), raw=True, allow_private=[home.place])).endswith("\n\n<p>Home")


async def test_an_empty_answer_says_that_it_is_empty() -> None:
    async with site() as home:
        home["/"] = page("", status="204 No Content")
        assert "It is empty." in await fetch(home.url(), allow_private=[home.place])


async def test_a_page_that_is_not_there_is_told_with_its_words() -> None:
    async with site() as home:
        home["/"] = page("<title>x</title><h1>Gone\nfishing</h1>", "Retry-After: 120", status="503 \x1b[31mEvil")
        with pytest.raises(PageFailed) as failed:
            await fetch(home.url(), allow_private=[home.place])
    said = str(failed.value)
    assert "503 Service Unavailable (try again after '120')" in said
    assert said.endswith("# Gone fishing")
    assert "Evil" not in said


# ---- in a turn -------------------------------------------------------------------------------------------------------


def outcome_of(model: ScriptedModel) -> str:
    return str(model.requests[-1].messages[-1])


async def asked(tools: tuple[AnyTool, ...], url: str) -> ScriptedModel:
    model = ScriptedModel([call("fetch", url=url), text("Done.")])
    agent = hf.Agent("reader", model=model, tools=list(tools), policy=[hf.allow("*")])
    await asyncio.wait_for(hf.run(agent, "Read it."), WAITS)
    return model


async def test_a_model_reads_the_page_that_it_asked_for() -> None:
    async with site() as home:
        home["/"] = page("<h1>News</h1>")
        model = await asked(web(allow_private=[home.place]), home.url())
    assert "# News" in outcome_of(model)


async def test_a_model_that_is_refused_reads_why_and_no_traceback() -> None:
    said = outcome_of(await asked(web(), "http://169.254.169.254/latest/meta-data/"))
    assert "metadata service of a cloud" in said
    assert "Traceback" not in said


def test_the_tool_says_that_it_only_reads() -> None:
    (tool,) = web()
    assert (tool.name, tool.read_only) == ("fetch", True)
    assert set(tool.parameters["properties"]) == {"url", "start", "raw"}
    assert tool.parameters["required"] == ["url"]
