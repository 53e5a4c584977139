"""A refund desk: customers write, an agent looks up orders and refunds, staff approve what is large, all over HTTP.

    export DESK_TOKENS="t-ada=customer:ada@example.org t-grace=staff:grace"
    python examples/refund_desk.py

It runs without an API key, because its model follows a script; REFUND_MODEL="anthropic:claude-sonnet-4-6" takes a real
one. Kill it at any moment and start it again: no message is lost, and no refund is made twice. docs/refund-desk.md
walks through it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import threading
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import uvicorn
from pydantic import Field
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser, requires
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import holdfast as hf
from holdfast import logs
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import HTTPConnection, Request

LARGE: Final = 5_000
"""Cents above which a person decides."""
MAX_BODY: Final = 16 * 1024
STORE: Final = os.environ.get("DESK_STORE", "refund-desk.db")
SHOP: Final = os.environ.get("DESK_SHOP", "shop.db")
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, customer TEXT, title TEXT, cents INTEGER);
CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, order_id TEXT UNIQUE, cents INTEGER, reason TEXT);
INSERT OR IGNORE INTO orders VALUES ('o-1', 'ada@example.org', 'Emma', 1250);
INSERT OR IGNORE INTO orders VALUES ('o-2', 'ada@example.org', 'Encyclopaedia, 30 volumes', 89000);
INSERT OR IGNORE INTO orders VALUES ('o-4', 'ada@example.org', 'Ulysses, first edition', 24000);
INSERT OR IGNORE INTO orders VALUES ('o-3', 'bob@example.org', 'Dracula', 990);
"""
T = TypeVar("T")


# ---- the shop ----


@dataclass
class Shop:
    """The database of the shop. It books a refund once for each key, as a bank with idempotency keys does."""

    db: sqlite3.Connection
    lock: threading.Lock = field(default_factory=threading.Lock)

    def orders(self, customer: str) -> list[dict[str, Any]]:
        refunded = "SELECT coalesce(sum(cents), 0) FROM refunds WHERE order_id = orders.id"
        rows = self.db.execute(f"SELECT id, title, cents, ({refunded}) FROM orders WHERE customer = ?", (customer,))
        return [dict(zip(("id", "title", "cents", "refunded"), row, strict=True)) for row in rows]

    def refund(self, key: str, customer: str, order: str, cents: int, reason: str) -> bool:
        """Book a refund; False if it can't be. An order is refunded once: no large refund comes in small pieces."""
        with self.lock, self.db:
            self.db.execute("BEGIN IMMEDIATE")
            if self.db.execute("SELECT 1 FROM refunds WHERE key = ?", (key,)).fetchone():
                return True  # an interrupted call that is repeated
            found = [each for each in self.orders(customer) if each["id"] == order and not each["refunded"]]
            if not found or cents > found[0]["cents"]:
                return False
            self.db.execute("INSERT INTO refunds VALUES (?, ?, ?, ?)", (key, order, cents, reason))
            return True


@asynccontextmanager
async def open_shop() -> AsyncGenerator[Shop]:
    with closing(sqlite3.connect(SHOP, isolation_level=None, check_same_thread=False)) as db:
        db.executescript(SCHEMA)
        yield Shop(db)


# ---- the agent ----


@hf.tool(read_only=True)  # plain functions run in threads, so that the database holds nobody up
def find_orders(ctx: hf.Context[Shop]) -> list[dict[str, Any]]:
    """List the orders of this customer, and how many cents of each were refunded."""
    return ctx.deps.orders(ctx.metadata["customer"])  # of the login, so the model can't ask for those of others


@hf.tool(idempotent=True)  # the shop books once for each key, so the runtime may repeat an interrupted call
def refund(ctx: hf.Context[Shop], order_id: str, cents: Annotated[int, Field(gt=0)], reason: str) -> str:
    """Refund cents of an order of this customer, once for each order."""
    if not ctx.deps.refund(ctx.idempotency_key, ctx.metadata["customer"], order_id, cents, reason):
        raise hf.ToolRetry(f"order {order_id} is unknown, was refunded before, or cost less")
    return f"refunded {cents} cents of order {order_id}"


@dataclass
class Answer:
    """What the customer gets."""

    reply: str
    refunded_cents: int = 0


def script(request: hf.ModelRequest) -> Any:
    """Plays the model: look up the orders, refund the one that the customer names, answer."""
    question = [message for message in request.messages if isinstance(message, hf.UserMessage)][-1]
    since = request.messages[request.messages.index(question) :]
    asked, results = question.text, [m.results[0] for m in since if isinstance(m, hf.ToolMessage)]
    if not results:
        return call(find_orders)
    if len(results) == 1:
        named = [order for order in results[0].content if order["id"] in asked]
        if named:
            return call(refund, order_id=named[0]["id"], cents=named[0]["cents"], reason=asked)
        return text(json.dumps(asdict(Answer("Which order do you mean? Please give its number."))))
    done = re.search(r"refunded (\d+) cents", str(results[1].content))
    cents = int(done[1]) if done and results[1].state == "ok" else 0
    reply = f"We sent you {cents / 100:.2f}." if cents else f"We can't refund that: {results[1].content}"
    return text(json.dumps(asdict(Answer(reply, cents))))


desk = hf.Agent(
    "refund-desk",
    model=os.environ.get("REFUND_MODEL") or ScriptedModel(script),
    instructions="You answer customers of a bookshop. Look up their orders, and refund what is fair.",
    tools=[find_orders, refund],
    policy=[hf.ask("refund", when={"cents": {"above": LARGE}}, expires=timedelta(days=7)), hf.allow("*")],
    limits=hf.Limits(steps=10, cost_usd=0.50, deadline=timedelta(days=8), unpriced="free"),
    admission=hf.Admission(max_chars=4_000, per_window=20),
    output=Answer,
)


# ---- HTTP ----


class Message(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class Approve(msgspec.Struct, forbid_unknown_fields=True):
    digest: str
    cents: int | None = None


class Deny(msgspec.Struct, forbid_unknown_fields=True):
    reason: str


class Tokens(AuthenticationBackend):
    """Who asks, and as what, comes from the token alone."""

    def __init__(self, tokens: str) -> None:
        pairs = [each.split("=", 1) for each in tokens.split()]
        if not all(len(pair) == 2 and all(pair) for pair in pairs):  # with an empty one, who has none would be known
            raise ValueError("write each token as TOKEN=WHO")
        self._known = {hashlib.sha256(token.encode()).digest(): who.partition(":") for token, who in pairs}

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        token = conn.headers.get("authorization", "").removeprefix("Bearer ")
        role, _, name = self._known.get(hashlib.sha256(token.encode()).digest(), ("", "", ""))
        return (AuthCredentials([role]), SimpleUser(name)) if role else None


async def read(request: Request, wanted: type[T]) -> T:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"at most {MAX_BODY} bytes")
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.MsgspecError as error:
        raise HTTPException(400, str(error)) from None


def session_of(request: Request) -> hf.Session[Answer]:
    customer = request.user.display_name
    return request.app.state.runtime.session(f"desk-{customer}", agent=desk, metadata={"customer": customer})


@requires("customer")
async def post_message(request: Request) -> Response:
    key = request.headers.get("idempotency-key")
    if not key:
        raise HTTPException(400, "an Idempotency-Key header is needed: with it you can safely send the message again")
    turn = await session_of(request).send((await read(request, Message)).text, key=key)
    return JSONResponse({"turn": turn.id, "status": f"/messages/{turn.id}"}, 202)


@requires("customer")
async def show_message(request: Request) -> Response:
    turn = session_of(request).turn(request.path_params["turn"])
    status = await turn.status()
    if status in {"queued", "running", "waiting", "no_agent"}:
        return JSONResponse({"turn": turn.id, "status": status})
    outcome = await turn.outcome()
    answer = outcome.value and asdict(outcome.value)
    return JSONResponse({"turn": turn.id, "status": status, "answer": answer, "problem": outcome.message})


@requires("staff")
async def list_approvals(request: Request) -> Response:
    fields = ("id", "session", "tool", "arguments", "digest", "why", "asked", "expires")
    found = await request.app.state.runtime.approvals()
    return JSONResponse([{name: getattr(each, name) for name in fields} for each in found])


@requires("staff")
async def approve(request: Request) -> Response:
    runtime, id, body = request.app.state.runtime, request.path_params["id"], await read(request, Approve)
    edited = None
    if body.cents is not None:
        shown = next((each for each in await runtime.approvals() if each.id == id), None)
        edited = shown and {**shown.arguments, "cents": body.cents}
    await runtime.approve(id, by=request.user.display_name, digest=body.digest, arguments=edited)
    return JSONResponse({"approved": id})


@requires("staff")
async def deny(request: Request) -> Response:
    id, body = request.path_params["id"], await read(request, Deny)
    await request.app.state.runtime.deny(id, body.reason, by=request.user.display_name)
    return JSONResponse({"denied": id})


async def refuse(_: Request, error: Exception) -> Response:
    """Errors of Holdfast say who can act; the caller gets 4xx, and may retry what the store refused."""
    known: dict[type, int] = {hf.KeyConflict: 409, hf.errors.ApprovalUnknown: 409, hf.errors.ApprovalClosed: 409}
    known |= {hf.errors.TurnUnknown: 404, hf.errors.RateExceeded: 429, hf.errors.RuntimeStopped: 503}
    by_actor = {"caller": 400, "store": 503}
    code = known.get(type(error)) or by_actor.get(getattr(error, "actor", ""), 500)
    return JSONResponse({"error": type(error).__name__, "message": str(error)}, code)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    async with hf.open(STORE, agents=[desk], deps=open_shop) as app.state.runtime:  # resumes what was interrupted
        yield


app = Starlette(
    routes=[
        Route("/messages", post_message, methods=["POST"]),
        Route("/messages/{turn}", show_message),
        Route("/approvals", list_approvals),
        Route("/approvals/{id}/approve", approve, methods=["POST"]),
        Route("/approvals/{id}/deny", deny, methods=["POST"]),
    ],
    middleware=[Middleware(AuthenticationMiddleware, backend=Tokens(os.environ["DESK_TOKENS"]))],
    exception_handlers={hf.HoldfastError: refuse},
    lifespan=lifespan,
)

if __name__ == "__main__":
    logs.configure()
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), limit_concurrency=1_000)
