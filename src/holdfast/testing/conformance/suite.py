"""The registry of cases, and the helpers that cases share."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from inspect import get_annotations, iscoroutinefunction
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.errors import CollectionRefused, HoldfastError
from holdfast.records import Blob, Done, EffectRequest, Record, Started
from holdfast.store import Lease, MemoryEntry, Spend, Store, Work
from holdfast.store.audit import Violation, audit
from holdfast.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from types import ModuleType

    from holdfast.clock import Clock
    from holdfast.store.contract import Reader

    Call: TypeAlias = Callable[[Store, Lease], Awaitable[object]]


T = TypeVar("T")
E = TypeVar("E", bound=HoldfastError)
Now: TypeAlias = "int"
StoreA: TypeAlias = "Store"
ClerkLease: TypeAlias = "Lease"
RunLease: TypeAlias = "Lease"
Reopen: TypeAlias = "Callable[[], Awaitable[Store]]"
DAY: Final = 24 * 60 * 60 * 1_000
PATIENCE: Final = 5.0
"""Seconds of real time after which something that should have happened did not."""


class Stores(Protocol):
    """One storage that can be opened repeatedly, also while it is open already."""

    def open(self, clock: Clock) -> AbstractAsyncContextManager[Store]:
        """A new opening, which sees all commits of earlier ones."""
        ...


class Case(NamedTuple):
    """One law of the contract: its name is a sentence; `run` raises `AssertionError` if it does not hold."""

    name: str
    run: Callable[[Stores], Awaitable[None]]

    def __str__(self) -> str:
        return self.name


def cases_in(module: ModuleType) -> list[Case]:
    """The cases of a module: its public coroutine functions, in the order of their definition."""
    return [
        Case(name.replace("_", " "), partial(_run_case, function))
        for name, function in vars(module).items()
        if iscoroutinefunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    ]


async def _run_case(function: Callable[..., Awaitable[None]], stores: Stores) -> None:
    """Run a case with arguments that match the types of its parameters.

    `Store` is an opening of the storage, `StoreA` one with a new journal "a", `Lease` the first opening's lease on a
    new journal "a" for a second, `ClerkLease` that of a journal of the agent clerk, `RunLease` that of a journal in
    which the run "t1" has begun. `ManualClock` is the clock of all openings, `Now` its time when the case begins.
    `Reopen` closes all openings and returns another one. After the case the storage must pass the audit. A case that
    takes `Stores` does all of this itself.
    """
    clock = ManualClock()
    async with AsyncExitStack() as stack:

        async def open_store() -> Store:
            return await stack.enter_async_context(stores.open(clock))

        async def reopen() -> Store:
            await stack.aclose()
            return await open_store()

        given: dict[str, Any] = {}
        for name, kind in get_annotations(function).items():
            match kind:
                case "Store":
                    given[name] = await open_store()
                case "StoreA":
                    given[name] = await open_store()
                    await given[name].open_journal("a")
                case "Lease" | "ClerkLease" | "RunLease":
                    store: Store = next(iter(given.values()))
                    await store.open_journal("a", agent="clerk" if kind == "ClerkLease" else None)
                    given[name] = await store.claim("a", ttl_ms=1_000)
                    if kind == "RunLease":
                        await append_here(store, given[name], Started(at=1, run="t1"))
                case "ManualClock":
                    given[name] = clock
                case "Now":
                    given[name] = clock.read().wall
                case "Reopen":
                    given[name] = reopen
                case "Stores":
                    return await function(stores)
                case _:
                    assert name == "return", name
        await function(**given)
        assert await (await reopen()).examine(audit) == []
    return None


@asynccontextmanager
async def unchanged(store: Store) -> AsyncGenerator[None]:
    """Assert that the block changes nothing in the store."""
    before = await contents(store)
    yield
    assert await contents(store) == before


async def contents(store: Store) -> dict[str, object]:
    """Read everything from a store, by topic: two equal contents mean that nothing has changed.

    The store of a test is small; pages are still followed to their end.
    """
    lines = await read_pages(store.journals, store.limits.page)
    names = sorted(line.id for line in lines)
    memory = [entry for scope in await store.memory_scopes() for entry in await memory_entries(store, scope.scope)]
    spending = await store.examine(lambda reader: list(reader.spending.raw()))
    attachments = await store.examine(lambda reader: list(reader.attachments.raw()))
    return {
        "position": await store.last_position(),
        "journals": lines,
        "records": {name: [entry async for entry in store.read_all(name)] for name in names},
        "inputs and waits": {name: (await store.pending(name), await store.waits(name)) for name in names},
        "work": [(found.journal, found.wakes) for found in await all_work(store)],
        "notifications": await read_pages(store.notifications, store.limits.page),
        "memory": [(entry, await store.memory_history(entry.scope, entry.key)) for entry in memory],
        "rules": await read_pages(store.rule_history, store.limits.page),
        "spending": {(agent, day): spend for agent, day, spend in spending},
        "attachments": sorted(attachments, key=lambda one: (one.session, one.digest)),
    }


async def read_pages(
    read: Callable[..., Awaitable[list[T]]], limit: int, after: Callable[[T], str | int] | None = None
) -> list[T]:
    """Read a list page by page: `read` takes the last item as `before`, or that item's cursor as `after`."""
    found: list[T] = []
    cursor: dict[str, Any] = {}
    while page := await read(**cursor, limit=limit):
        cursor = {"after": after(page[-1])} if after else {"before": page[-1]}
        assert len(page) <= limit
        assert page[0] not in found, "a page begins with an item that was shown before"
        found.extend(page)
    return found


async def check_narrowed(
    read: Callable[..., Awaitable[list[Any]]], *sizes: int, **choices: tuple[str | None, ...]
) -> None:
    """Assert that a list has the right items for every combination of these arguments; None is for any.

    Each argument has the name of a field. The list is read without a limit, and in pages of these sizes.
    """
    everything = await read()
    for combination in itertools.product(*choices.values()):
        terms = dict(zip(choices, combination, strict=True))
        wanted = {name: value for name, value in terms.items() if value is not None}
        expected = [item for item in everything if {name: getattr(item, name) for name in wanted} == wanted]
        assert await read(**terms) == expected, terms
        for size in sizes:
            assert await read_pages(partial(read, **terms), size) == expected, (terms, size)


async def all_work(store: Store, limit: int | None = None) -> list[Work]:
    """All work of the store, page by page."""
    return await read_pages(store.work, limit or store.limits.page, attrgetter("no"))


async def memory_entries(store: Store, scope: str, prefix: str = "", limit: int | None = None) -> list[MemoryEntry]:
    """All memories of a scope, page by page."""
    return await read_pages(partial(store.memory_list, scope, prefix), limit or store.limits.page, attrgetter("key"))


async def refusal(kind: type[E], *attempts: Awaitable[object], **fields: object) -> E:
    """The error of this kind and with these fields that each attempt ends with; any other end fails the case.

    An append, a claim, a release and `accept_into` are under way before this is called: those that must not share a
    commit are attempted in calls of their own.
    """
    refused: list[E] = []
    for number, attempt in enumerate(attempts, 1):
        try:
            answer = await attempt
        except kind as error:
            refused.append(error)
            found = {name: getattr(error, name) for name in fields}
            if found != fields:
                message = f"attempt {number}: {fields} were expected in {error!r}, not {found}"
                raise AssertionError(message) from error
        else:
            raise AssertionError(f"attempt {number} should have been refused with {kind.__name__}, not {answer!r}")
    return refused[-1]


async def promptly(attempt: Awaitable[Any]) -> Any:  # any value
    """The answer, or a failure instead of a hanging test."""
    return await asyncio.wait_for(attempt, PATIENCE)


def step(name: str, *, at: int = 1, value: bytes = b"1") -> Done:
    """A record like any other."""
    return Done(at=at, key=f"main/{name}", ask=EffectRequest("step", name, "0" * 64), value=msgspec.Raw(value))


def with_blob(blob: Blob, name: str = "large") -> Done:
    """A record that refers to a blob."""
    return Done(at=1, key=f"main/{name}", ask=EffectRequest("step", name, "0" * 64), blob=blob)


async def leased(store: Store, journal: str, *, ttl_ms: int = 10_000) -> Lease:
    """The lease on a journal that is made for it."""
    await store.open_journal(journal)
    return await store.claim(journal, ttl_ms=ttl_ms)


async def open_each_wait(store: Store, *names: str) -> None:
    """Open waits of the journal "a", without a deadline."""
    for name in names:
        await store.open_wait("a", name)


async def append_here(store: Store, lease: Lease, *added: Record, spend: Spend | None = None) -> int:
    """Append where the journal ends now."""
    return await store.append(lease, added, head=(await store.journal(lease.journal)).head, spend=spend)


def spend_of_step(record: Record, _: object) -> Spend | None:
    """In the cases of spending, every step is a tool call."""
    return Spend(tool_calls=1) if isinstance(record, Done) else None


def audit_steps(reader: Reader) -> list[Violation]:
    """Audit a store whose spending is that of its steps."""
    return audit(reader, None, spend_of_step)


def _calls(*names: str) -> dict[str, Call]:
    """Calls without arguments."""
    return {name: lambda store, _, call=methodcaller(name): call(store) for name in names}


def _journal_calls(*names: str) -> dict[str, Call]:
    """Calls with the id of a journal (or of anything) as the only argument."""
    return {name: lambda store, lease, name=name: getattr(store, name)(lease.journal) for name in names}


ON_A_JOURNAL: Final[dict[str, Call]] = {
    **_journal_calls("claim", "revoke_waits", "journal", "read", "tail", "pending", "read_with_inbox", "waits"),
    **_journal_calls("next_notifications"),
    "append": lambda store, lease: store.append(lease, [step("x")], head=1),
    "renew": lambda store, lease: store.renew(lease),
    "release": lambda store, lease: store.release(lease),
    "fork": lambda store, lease: store.fork(f"{lease.journal}-fork", lease.journal, 1),
    "accept": lambda store, lease: store.accept(lease.journal, "hello", key="k"),
    "find_input": lambda store, lease: store.find_input(lease.journal, "k"),
    "open_wait": lambda store, lease: store.open_wait(lease.journal, "w"),
    "answer_wait": lambda store, lease: store.answer_wait(lease.journal, "w", 1),
    "answer_next": lambda store, lease: store.answer_next(lease.journal, "w/", 1, most=9, key="k"),
    "expire_wait": lambda store, lease: store.expire_wait(lease.journal, "w"),
    "cancel_wait": lambda store, lease: store.cancel_wait(lease.journal, "w"),
    "trim_journal": lambda store, lease: store.trim_journal(lease, 0),
    "remove_waits": lambda store, lease: store.remove_waits(lease, "w", 0),
    "empty_inputs": lambda store, lease: store.empty_inputs(lease, 0),
    "quarantine": lambda store, lease: store.quarantine(lease.journal, "a test"),
    "wait": lambda store, lease: store.wait(lease.journal, "w"),
    "notify": lambda store, lease: store.notify(lease.journal, kind="task", title="done", key="k"),
    "deliver_notifications": lambda store, lease: store.deliver_notifications(lease, (), "news"),
}
"""Every call that takes a journal."""


async def _collected(store: Store) -> None:
    with suppress(CollectionRefused):  # the journals of a case may be quarantined
        await store.collect_blobs()


ON_THE_STORE: Final[dict[str, Call]] = {
    **_calls("work", "attachments", "feed", "last_position", "journals", "due", "next_due", "notifications", "ripen"),
    **_calls("purge_notifications", "memory_scopes", "memory_purge", "rule_history", "tombstones"),
    **_journal_calls("memory_list", "memory_page", "tombstone"),
    "open_journal": lambda store, lease: store.open_journal(f"{lease.journal}-new"),
    "accept_into": lambda store, lease: store.accept_into(f"{lease.journal}-made", "session", None, "hello", key="k"),
    "heads": lambda store, lease: store.heads([lease.journal]),
    "wakes": lambda store, lease: store.wakes([lease.journal]),
    "put_blob": lambda store, lease: store.put_blob(lease.journal.encode()),
    "collect_blobs": lambda store, _: _collected(store),
    "put_attachment": lambda store, lease: store.put_attachment(lease.journal.encode(), "text/plain"),
    "share_attachment": lambda store, lease: store.share_attachment("0" * 64, lease.journal),
    "attachment": lambda store, _: store.attachment("0" * 64),
    "may_read": lambda store, lease: store.may_read(lease.journal, "0" * 64),
    "blob": lambda store, _: store.blob("0" * 64),
    "memory_put": lambda store, lease: store.memory_put(lease.journal, "k", "v"),
    "memory_get": lambda store, lease: store.memory_get(lease.journal, "k"),
    "memory_delete": lambda store, lease: store.memory_delete(lease.journal, "k"),
    "memory_search": lambda store, lease: store.memory_search(lease.journal, "v"),
    "memory_history": lambda store, lease: store.memory_history(lease.journal, "k"),
    "open_waits": lambda store, _: store.open_waits("approval"),
    "add_rule": lambda store, _: store.add_rule("clerk", "{}", by="ops"),
    "rules": lambda store, _: store.rules("clerk"),
    "spent": lambda store, _: store.spent("clerk"),
}
"""Every call that takes none."""
STALE: Final = ("append", "renew", "release", "deliver_notifications", "trim_journal", "empty_inputs", "remove_waits")
"""The calls that need a lease that is still theirs."""
