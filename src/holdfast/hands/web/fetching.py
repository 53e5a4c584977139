"""A fetch: hop by hop to the answer, its body within bounds, and what a model gets of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from holdfast.attachments import File
from holdfast.hands.web.dialling import answer, checked_addresses, pieces, trusted_roots
from holdfast.hands.web.errors import ContentRefused, FetchFailed, PageFailed, UrlInvalid, UrlRefused
from holdfast.hands.web.inflating import BodyBroken, body_of
from holdfast.hands.web.media import Unfit, decoded, judge
from holdfast.hands.web.page import Page, read_page
from holdfast.hands.web.report import Report, page_of
from holdfast.hands.web.urls import follow, read_url
from holdfast.tools.threads import in_thread

if TYPE_CHECKING:
    import ssl

    import aiohttp

    from holdfast.hands.web.dialling import Resolver
    from holdfast.hands.web.media import Found
    from holdfast.hands.web.policy import Policy
    from holdfast.hands.web.urls import Url

_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_EXCERPT: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much one fetch may take."""

    timeout: float
    """Seconds for all of it."""
    limit: int
    """Bytes of a body, on the wire and decompressed."""
    characters: int
    """Of text that one call shows."""
    redirects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    url: Url
    hops: int
    status: int
    phrase: str
    content_type: str
    retry_after: str
    body: bytes
    cut: bool


class Fetcher:
    """Fetches within a policy and bounds."""

    def __init__(self, policy: Policy, bounds: Bounds, resolver: Resolver, user_agent: str) -> None:
        self._policy = policy
        self._bounds = bounds
        self._resolver = resolver
        self._user_agent = user_agent
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, text: str, *, start: int, raw: bool) -> str | File:
        """What is at the URL in `text`: its text from character `start` on, or the file that it is."""
        url = read_url(text)
        self._policy.check(url)
        timer = asyncio.timeout(self._bounds.timeout)
        try:
            async with timer:
                found = await self._followed(url)
                return await self._shown(found, start=start, raw=raw)
        except TimeoutError:
            if not timer.expired():
                raise
        raise FetchFailed(str(url), f"it took longer than {self._bounds.timeout:g} s")

    # ---- the way there ----

    async def _followed(self, url: Url) -> _Answer:
        for hops in range(self._bounds.redirects + 1):
            found = await self._asked(url, hops)
            if isinstance(found, _Answer):
                return found
            url = found
        raise FetchFailed(str(url), f"there were more than {self._bounds.redirects} redirects on the way to it")

    async def _asked(self, url: Url, hops: int) -> _Answer | Url:
        """The answer, or where it sends us; that was checked as far as its text tells."""
        if self._tls is None and url.scheme == "https":
            self._tls = await trusted_roots()
        addresses = await checked_addresses(url, self._policy, self._resolver)
        async with answer(url, addresses, self._tls, self._user_agent) as response:
            location = response.headers.get("Location")
            if response.status in _REDIRECTS and location is not None:
                return self._redirected(url, location)
            body, cut = await self._body(url, response)
            return _Answer(
                url=url,
                hops=hops,
                status=response.status,
                phrase=_phrase(response.status),
                content_type=response.headers.get("Content-Type", ""),
                retry_after=response.headers.get("Retry-After", ""),
                body=body,
                cut=cut,
            )

    def _redirected(self, url: Url, location: str) -> Url:
        try:
            after = follow(url, location)
        except UrlInvalid as error:
            raise UrlRefused(str(url), f"it redirects to what is not a valid URL: {error.reason}") from None
        self._policy.check_redirect(url, after)
        return after

    async def _body(self, url: Url, response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        """The body, decompressed, and whether it was cut at the limit."""
        encoding = response.headers.get("Content-Encoding", "")
        reading = body_of(encoding)
        if reading is None:
            raise ContentRefused(str(url), f"it came compressed as {encoding[:40]!a}, which was not asked for")
        limit, wire, size = self._bounds.limit, 0, 0
        kept: list[bytes] = []
        try:
            async for piece in pieces(url, response):
                wire += len(piece)
                more = reading.feed(piece, limit - size)
                kept.append(more)
                size += len(more)
                if size > limit or wire > limit:
                    return b"".join(kept)[:limit], True
            reading.end()
        except BodyBroken as error:
            raise FetchFailed(str(url), f"its body is damaged: {error}") from None
        return b"".join(kept), False

    # ---- what is shown ----

    async def _shown(self, found: _Answer, *, start: int, raw: bool) -> str | File:
        kind = judge(found.content_type, found.body)
        if found.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise await self._failed(found, kind)
        if not found.body:
            return Report(url=str(found.url), hops=found.hops, media_type="", title="", text="").told(0, 1)
        if isinstance(kind, Unfit):
            raise ContentRefused(str(found.url), kind.reason)
        if kind.kind == "file":
            return self._file(found, kind)
        page = await _read(found, kind, raw=raw)
        report = Report(
            url=str(found.url),
            hops=found.hops,
            media_type=kind.media_type,
            title=page.title,
            text=page.text,
            cut_at=self._bounds.limit if found.cut else None,
            longer=page.cut,
        )
        return report.told(start, self._bounds.characters)

    async def _failed(self, found: _Answer, kind: Found | Unfit) -> PageFailed:
        said = ""
        if not isinstance(kind, Unfit) and kind.kind != "file":
            said = page_of((await _read(found, kind, raw=False)).text, _EXCERPT)
        waits = f" (try again after {found.retry_after[:40]!a})" if found.retry_after else ""
        return PageFailed(str(found.url), found.status, found.phrase + waits, said)

    def _file(self, found: _Answer, kind: Found) -> File:
        if found.cut:
            raise ContentRefused(str(found.url), f"it is {kind.media_type} of more than {self._bounds.limit:,} bytes")
        return File(found.body, kind.media_type, name=_name(found.url))


async def _read(found: _Answer, kind: Found, *, raw: bool) -> Page:
    # A long page takes a while: not on the event loop.
    given = {"found": found, "kind": kind, "raw": raw}
    page: Any = await in_thread(_page, given)
    return page


def _page(found: _Answer, kind: Found, *, raw: bool) -> Page:
    page = kind.kind == "page"
    text = decoded(found.body, found.content_type, page=page, whole=not found.cut)
    if page and not raw:
        return read_page(text, str(found.url))
    return Page("", text, cut=False)


def _phrase(status: int) -> str:
    """Our own words for a status: those of the server are its own to choose."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _name(url: Url) -> str | None:
    last = unquote(url.path.partition("?")[0].rpartition("/")[2], errors="replace")[:200]
    return last if last and last.isprintable() else None
