"""What the status of an answer means, where the provider's own words say nothing better. Pure."""

from __future__ import annotations

from typing import Final

_KINDS: Final = {
    401: "authentication",
    402: "billing",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    413: "context_overflow",
    425: "server_error",
    429: "rate_limited",
    499: "server_error",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def kind_of_status(status: int) -> str:
    """The kind of the error. What is no status of a refusal is the server's fault."""
    return _KINDS.get(status) or ("bad_request" if 300 <= status < 500 else "server_error")
