"""A chat service: messages come in by POST, replies go out as server-sent events, from any of several workers.

    export CHAT_TOKENS="t-ada=ada t-bob=bob"
    PORT=8001 python examples/chat_service.py &
    PORT=8002 python examples/chat_service.py &

Both workers use one store. Post to either, follow on either: one of them runs the model, and its words reach readers
on both while it writes. Kill that one: the other takes over, and readers reconnect with their last event id and miss
nothing. It runs without an API key, because its model follows a script; CHAT_MODEL="anthropic:claude-sonnet-4-6" takes
a real one. docs/chat-service.md walks through it.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser, requires
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import holdfast as hf
from holdfast import events, logs
from holdfast.sse import sse_stream
from holdfast.testing import ScriptedModel, paced, stream

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator

    from starlette.requests import HTTPConnection, Request

STORE: Final = os.environ.get("CHAT_STORE", "chat.db")
PACE: Final = float(os.environ.get("CHAT_PACE", "0.05"))
"""Seconds between the words of the scripted model."""
MAX_BODY: Final = 64 * 1024


def script(request: hf.ModelRequest) -> Any:
    """Plays the model: says slowly what it has heard."""
    heard = [message.text for message in request.messages if isinstance(message, hf.UserMessage)]
    return paced(PACE, stream(*re.findall(r"\S+\s*", f"This is message {len(heard)}, and you said: {heard[-1]}")))


chat = hf.Agent(
    "chat",
    model=os.environ.get("CHAT_MODEL") or ScriptedModel(script),
    instructions="You are a friendly companion. Answer in a few sentences.",
    limits=hf.Limits(deadline=300, session=hf.Budget(cost_usd=5.00), unpriced="free"),
    admission=hf.Admission(per_window=60),
)


# ---- what readers see ----


def shown(event: hf.Event) -> tuple[str, Any] | None:
    """The name and the data of an event for readers; None for those that are not their business."""
    match event:
        case events.InputAccepted():
            return "input", {"text": event.text}
        case events.ModelStarted() | events.AttemptReset() | events.TurnResumed():
            return "restart", {}  # forget the words since the last message: the reply begins, or begins again
        case events.TextDelta():
            return "delta", {"text": event.text}
        case events.MessageCommitted(message=hf.AssistantMessage() as message):
            return "message", {"text": message.text}
        case events.Gap():
            return "gap", {"reason": event.reason}  # words are missing; the message will have them
        case events.TurnCompleted():
            return "end", {"status": "completed"}
        case events.TurnFailed() | events.TurnCancelled() | events.TurnLimit():
            return "end", {"status": event.code, "message": event.message}
        case _:
            return None


# ---- HTTP ----


class Message(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class Tokens(AuthenticationBackend):
    """Who asks comes from the token alone."""

    def __init__(self, tokens: str) -> None:
        pairs = [each.split("=", 1) for each in tokens.split()]
        if not all(len(pair) == 2 and all(pair) for pair in pairs):  # with an empty one, who has none would be known
            raise ValueError("write each token as TOKEN=WHO")
        self._known = {hashlib.sha256(token.encode()).digest(): name for token, name in pairs}

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        token = conn.headers.get("authorization", "").removeprefix("Bearer ")
        name = self._known.get(hashlib.sha256(token.encode()).digest())
        return (AuthCredentials(["user"]), SimpleUser(name)) if name else None


def session_of(request: Request) -> hf.Session:
    user, name = request.user.display_name, request.path_params["chat"]
    return request.app.state.runtime.session(f"chat/{user}/{name}", agent=chat, metadata={"user": user})


async def read(request: Request) -> Message:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"at most {MAX_BODY} bytes")
    try:
        return msgspec.json.decode(body, type=Message)
    except msgspec.MsgspecError as error:
        raise HTTPException(400, str(error)) from None


@requires("user")
async def post_message(request: Request) -> Response:
    """Accept a message: when this answers, it is on the disk and will be answered, by whichever worker."""
    key = request.headers.get("idempotency-key")
    if not key:
        raise HTTPException(400, "an Idempotency-Key header is needed: with it you can safely send the message again")
    turn = await session_of(request).send((await read(request)).text, key=key)
    return JSONResponse({"turn": turn.id}, 202)


@requires("user")
async def stop(request: Request) -> Response:
    """Stop the reply that is being written, in whichever worker."""
    return JSONResponse({"stop": await session_of(request).cancel("stopped by the user")}, 202)


@requires("user")
async def follow(request: Request) -> Response:
    """All events of the chat from its start, or behind the last one that the reader has, and then new ones."""
    found = session_of(request).events(after=request.headers.get("last-event-id") or 0)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(sse_stream(found, shown), media_type="text/event-stream", headers=headers)


async def refuse(_: Request, error: Exception) -> Response:
    """Errors of Holdfast say who can act: the caller gets 4xx, and may retry what the store refused."""
    known: dict[type, int] = {hf.KeyConflict: 409, hf.errors.RateExceeded: 429}
    known |= {hf.errors.JournalMissing: 404, hf.errors.RuntimeStopped: 503}
    code = known.get(type(error)) or {"caller": 400, "store": 503}.get(getattr(error, "actor", ""), 500)
    return JSONResponse({"error": type(error).__name__, "message": str(error)}, code)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    async with hf.open(STORE, agents=[chat]) as app.state.runtime:
        yield


app = Starlette(
    routes=[
        Route("/chats/{chat}/messages", post_message, methods=["POST"]),
        Route("/chats/{chat}/stop", stop, methods=["POST"]),
        Route("/chats/{chat}/events", follow),
    ],
    middleware=[Middleware(AuthenticationMiddleware, backend=Tokens(os.environ["CHAT_TOKENS"]))],
    exception_handlers={hf.HoldfastError: refuse},
    lifespan=lifespan,
)


class Server(uvicorn.Server):
    """Ends the event streams first: a server that waits for its readers would never stop."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await app.state.runtime.close()
        await super().shutdown(sockets)


if __name__ == "__main__":
    logs.configure()
    port = int(os.environ.get("PORT", "8001"))
    Server(uvicorn.Config(app, host="127.0.0.1", port=port, limit_concurrency=1_000)).run()
