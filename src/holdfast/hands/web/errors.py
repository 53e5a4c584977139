"""What goes wrong when a page is asked for, in words that a model can act on."""

from __future__ import annotations

from holdfast.errors import UsageError, WorldError


class UrlInvalid(UsageError):
    """Text that is no address of a web page, or one that is written to be misread."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{shown(url)} is not a valid URL: {reason}")
        self.url = url
        self.reason = reason


class UrlRefused(UsageError):
    """An address that this agent must not visit. Nothing was sent there."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{shown(url)} must not be fetched: {reason}")
        self.url = url
        self.reason = reason


class FetchFailed(WorldError):
    """No whole answer came: the name, the connection, the encryption, the time or the body failed."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{shown(url)} could not be fetched: {reason}")
        self.url = url
        self.reason = reason


class PageFailed(WorldError):
    """The server answered that it will not, or can't."""

    def __init__(self, url: str, status: int, phrase: str, said: str) -> None:
        words = f"{status} {phrase}".strip()
        super().__init__(f"{shown(url)} answered {words}{f'. The page says: {said}' if said else ''}")
        self.url = url
        self.status = status
        self.said = said


class ContentRefused(WorldError):
    """The answer is of a kind, or of a size, that is no use to a model."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{shown(url)} was fetched, but can't be shown: {reason}")
        self.url = url
        self.reason = reason


def shown(url: str) -> str:
    """A URL as it stands in a message: bounded, and without characters that only a terminal sees."""
    text = ascii(url)[1:-1]
    return text if len(text) <= 200 else f"{text[:160]}... ({len(url):,} characters)"
