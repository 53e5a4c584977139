"""Errors in each of the four dialects: as an answer, and inside a stream. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.testing.dialects.frames import element, encode, sse

if TYPE_CHECKING:
    from holdfast.testing.dialects.asking import Asked, DialectName


def error_body(dialect: DialectName, status: int, message: str, *, code: str = "", retry: float | None = None) -> bytes:
    """The body of an answer with an error status."""
    return encode(_error(dialect, status, message, code, retry))


def error_frame(asked: Asked, status: int, message: str) -> bytes:
    """An error inside a stream that had begun well."""
    failure = _error(asked.dialect, status, message, "", None)
    match asked.dialect:
        case "anthropic":
            return sse(failure, "error")
        case "responses":
            told = {"type": "error", "code": _openai_type(status), "message": message, "param": None}
            return sse({**told, "sequence_number": 0}, "error")
        case "google" if asked.form == "array":
            return element(failure)
        case _:
            return sse(failure)


def bad_frame(asked: Asked) -> bytes:
    """A frame that is no JSON, under a name that the client knows."""
    if asked.form == "array":
        return b'{"candidates" 1},\r\n'
    name = {"anthropic": b"event: content_block_delta\n", "responses": b"event: response.output_text.delta\n"}
    return name.get(asked.dialect, b"") + b'data: {"type": "cont\n\n'


def _error(dialect: DialectName, status: int, message: str, code: str, retry: float | None) -> dict[str, Any]:
    match dialect:
        case "anthropic":
            return {"type": "error", "error": {"type": _ANTHROPIC_ERRORS.get(status, "api_error"), "message": message}}
        case "google":
            details: list[Any] = []
            if retry is not None:
                details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry:g}s"})
            name = _GOOGLE_ERRORS.get(status, "INTERNAL")
            return {"error": {"code": status, "message": message, "status": name, "details": details}}
        case _:
            error = {"message": message, "type": _openai_type(status), "param": None, "code": code or None}
            return {"error": error}


def _openai_type(status: int) -> str:
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_request_error" if status < 500 else "server_error"


_ANTHROPIC_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GOOGLE_ERRORS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}
