"""Whatever a store is told, it is told without secrets."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.errors.caller import SecretExposed
from holdfast.secrets.redactor import Redactor
from holdfast.store import client
from holdfast.store.client import Store
from holdfast.store.contract import Command, Owner, blob_digest, input_digest
from holdfast.store.inbox import Accept, SetTerms
from holdfast.store.memories import PutMemory
from holdfast.store.notifications import Notify
from holdfast.store.transaction import Claim, OpenJournal, PutBlob, Quarantine
from holdfast.store.waits import SettleWait

if TYPE_CHECKING:
    from collections.abc import Callable

STORE = Path(client.__file__).parent
KEY = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"


@pytest.fixture
def redactor() -> Redactor:
    found = Redactor()
    found.register("KEY", KEY)
    return found


CONTENT = {
    "Accept": ("body",),
    "AddRule": ("body",),
    "DeliverNotifications": ("body",),
    "NoteRefusal": ("message",),
    "Notify": ("title", "body", "payload"),
    "OpenJournal": ("metadata",),
    "OpenWait": ("body",),
    "PutAttachment": ("body",),
    "PutBlob": ("body",),
    "PutMemory": ("value", "summary", "metadata"),
    "Quarantine": ("reason",),
    "SaveFold": ("body",),
    "SettleNext": ("payload",),
    "SettlePumped": ("reason",),
    "SettleWait": ("payload",),
}


CALLED = {
    "read_position": (),
    "renew": ("lease",),
    "settle_notification": ("number", "state"),
    "ripen": ("after", "again"),
    "count_older_spending": ("rows", "since"),
    "rebuild_spending": ("position", "rows"),
    "replace_spending": ("position", "summed"),
    "trim_journal": ("lease", "seq"),
    "empty_inputs": ("before", "kept", "lease"),
    "remove_waits": ("before", "lease", "prefix"),
    "purge_notifications": ("page", "until"),
    "memory_purge": (),
    "collect_unused": ("before", "digests", "without_roots"),
}
"""The methods that queue a function, and what it takes from them: numbers, leases, states, digests and names of agents,
and the prefix of waits, but no text that a caller writes.
"""


def test_of_every_command_it_is_said_what_is_to_be_hidden() -> None:
    every = cast("list[type[Command[Any]]]", Command.__subclasses__())
    assert len(every) + len(CALLED) > 35
    found = {command.__name__: _texts_of(command) for command in every}
    assert {name: fields for name, fields in found.items() if fields} == CONTENT


def test_a_queued_function_takes_no_text_into_the_store() -> None:
    found = {name: _taken_by_call(method) for name, method in inspect.getmembers(Store, inspect.isfunction)}
    assert {name: taken for name, taken in found.items() if taken is not None and name != "_call"} == CALLED
    made = {
        path.name for path in STORE.rglob("*.py") if re.search(r"\bFunctionCommand\(", path.read_text(encoding="utf-8"))
    }
    assert made == {"client.py", "contract.py"}


def _taken_by_call(method: Callable[..., Any]) -> tuple[str, ...] | None:
    """The arguments and variables of a method that it gives to `_call`; None if it does not call it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._call"]
    if not called:
        return None
    (function,) = called[0].args
    if isinstance(function, ast.Name):
        function = next(
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == function.id
        )
    named = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return tuple(sorted(named & {*method.__code__.co_varnames, *method.__code__.co_cellvars} - {"self", "tx"}))


def _texts_of(command: type[Command[Any]]) -> tuple[str, ...]:
    """The fields with text or bytes that are cleaned; `Append` has records besides, each with content of its own."""
    made: Any = command(**dict.fromkeys(command.__struct_fields__, "x"))
    kinds = inspect.get_annotations(command)
    return tuple(name for name in made._contents() if re.match("str|bytes", kinds[name]))


@pytest.mark.parametrize(
    "command",
    [
        Notify("s", "host", f"rotate {KEY}", KEY),
        PutMemory("notes", "keys", KEY),
        PutMemory("notes", "keys", f'{{"key":"{KEY}"}}'.encode(), summary=KEY, metadata=f'{{"key":"{KEY}"}}'.encode()),
        PutBlob("0" * 64, KEY.encode()),
        Accept("s", "k", "0" * 64, f'"{KEY}"'.encode()),
        SettleWait("s", "w", "resolved", f'"{KEY}"'.encode()),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_a_command_tells_is_cleaned(redactor: Redactor, command: Command[object]) -> None:
    assert KEY not in repr(command.redact(redactor))


@pytest.mark.parametrize(
    "command",
    [
        OpenJournal(f"for {KEY}", "session", None),
        Accept("s", f"order-{KEY}", "0" * 64, b"1"),
        Accept("s", "k", "0" * 64, b"1", OpenJournal("s", "session", KEY)),
        PutMemory("notes", KEY, "x"),
        Notify("s", "host", "x", key=KEY),
    ],
    ids=["journal", "input key", "agent", "memory key", "notification key"],
)
def test_a_name_that_holds_a_secret_is_refused(redactor: Redactor, command: Command[object]) -> None:
    with pytest.raises(SecretExposed):
        command.redact(redactor)


def test_the_digest_of_an_input_is_that_of_what_is_stored(redactor: Redactor) -> None:
    clean = Accept("s", "k", "0" * 64, f'"{KEY}"'.encode()).redact(redactor)
    assert clean.digest == input_digest(clean.body)


def test_the_digest_of_a_blob_is_that_of_what_is_stored(redactor: Redactor) -> None:
    clean = PutBlob("0" * 64, KEY.encode()).redact(redactor)
    assert clean.digest == blob_digest(clean.body)


def test_the_terms_of_an_agent_stay_as_they_are_although_a_number_in_them_is_a_secret() -> None:
    redactor = Redactor()
    redactor.register("PIN", "67108864")
    terms = SetTerms("clerk", '{"max_bytes":67108864,"per_window":1}')
    assert terms.redact(redactor) == terms


@pytest.mark.parametrize(
    "command",
    [
        Claim("s", Owner("abc", 42, 7, "pid:[1]", "boot-1"), 1_000),
        Quarantine("s", "record 1: it does not match its checksum"),
        SettleWait("s", "w", "cancelled"),
        SettleWait("s", "w", "expired"),
    ],
    ids=lambda command: f"{type(command).__name__} {getattr(command, 'state', '')}",
)
def test_a_command_without_content_fits_into_a_queue_that_is_full_of_bytes(command: Command[object]) -> None:
    assert command.size() == 0
