"""Waits and stored rules.

A wait is a one-shot durable promise; every suspension in Holdfast is one. A stored rule is the answer "always" to an
approval, which the store does not interpret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Final, Literal, Self

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvalidValue, KeyConflict, PayloadTooLarge, WaitUnknown
from holdfast.errors.caller import ApprovalMismatch, RuleUnknown
from holdfast.errors.store import RulesFull, WaitConsumed
from holdfast.names import check_id, check_string
from holdfast.store.contract import Command, JournalRow, Reader, Settlement, StoreLimits, Wait, blob_digest
from holdfast.store.inbox import stop_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.clock import Instant
    from holdfast.secrets.redactor import Redactor
    from holdfast.store.transaction import Transaction


SIGNAL_MEMO_PREFIX: Final = "~signalled/"
"""Prefix of the waits that remember signals with a key."""
EVERY_AGENT: Final = "*"
"""The agent of a rule for every agent."""
_TOKEN_PREFIX: Final = "hfw1"  # noqa: S105  it marks a token and is no secret
_MAX_TOKEN: Final = 4_096


# ---- commands ----


class OpenWait(Command[Wait], frozen=True):
    """Open a wait. An existing one keeps its deadline, its question and its resolution."""

    journal: str
    name: str
    deadline: int | None
    kind: str | None = None
    body: bytes | None = None

    def apply(self, tx: Transaction) -> Wait:
        row = tx.journal(self.journal)
        row.check_here()
        found = tx.rows.wait(row, self.name)
        wait = decide_open_wait(row, found, self, tx.now.wall)
        if wait is not found:
            tx.rows.save_wait(row, wait)
        return wait


class SettleWait(Command[Settlement], frozen=True):
    """Settle a wait; the first attempt wins."""

    journal: str
    name: str
    state: Literal["resolved", "expired", "cancelled"]
    payload: bytes | None = None
    early: bool = True
    """The resolution may come before its wait is opened."""
    expect_digest: str | None = None
    """The digest of the question that this answers."""
    rule: AddRule | None = None
    """A rule to store in the same commit, if this attempt wins."""

    def size(self) -> int:
        return super().size() + (0 if self.rule is None else self.rule.size())

    def redact(self, redactor: Redactor) -> Self:
        if self.rule is not None:
            self.rule.redact(redactor)
        return super().redact(redactor)

    def apply(self, tx: Transaction) -> Settlement:
        row = tx.journal(self.journal)
        row.check_here()
        found = tx.rows.wait(row, self.name)
        # If its turn is being stopped, no answer to a question counts any more.
        asked = row.kind == "session" and found is not None and found.body is not None and self.state == "resolved"
        stopped = asked and tx.rows.input_by_key(row, stop_key(self.name.partition("/")[0])) is not None
        command = replace(self, state="cancelled", rule=None) if stopped else self
        settlement = decide_settle(row, found, command, tx.now)
        if stopped:
            settlement = replace(settlement, won=False)
        if settlement.won and command.rule is not None:  # first, because it may be refused
            settlement = replace(settlement, rule=command.rule.apply(tx)[0])
        if settlement.wait != found:
            tx.rows.save_wait(row, settlement.wait)
        if wakes_waiting(row, found, settlement.wait):
            tx.wake(row)
        return settlement


class SettleNext(Command[Settlement], frozen=True):
    """Resolve the first open one of numbered waits, or the next number.

    With a `key`, only once: the same payload under the same key settles nothing.
    """

    journal: str
    prefix: str
    """The prefix of their names; eight digits follow, from 1."""
    most: int
    """The highest number allowed."""
    payload: bytes
    key: str | None = None

    def apply(self, tx: Transaction) -> Settlement:
        row = tx.journal(self.journal)
        row.check_here()
        memo = None
        if self.key is not None:  # each run has its own signals
            run = self.prefix.partition("/")[0]
            name = f"{SIGNAL_MEMO_PREFIX}{blob_digest(f'{run}/{self.key}'.encode())[:40]}"
            memo = Wait(row.id, name, "resolved", None, signal_memo_payload(self.payload), opened=False)
        known = None if memo is None else tx.rows.wait(row, memo.name)
        if memo is not None and known is not None:
            if row.revoked or known.state == "revoked":
                raise WaitUnknown
            if known.payload != memo.payload:
                raise KeyConflict(row.id, self.key or "")
            return Settlement(known, won=False)
        for name in sorted(tx.rows.open_waits(row, self.prefix)):
            settlement = SettleWait(self.journal, name, "resolved", self.payload).apply(tx)
            if settlement.won:  # the others are past their deadline
                break
        else:
            last = tx.rows.last_wait(row, self.prefix)
            number = 1 if last is None else 1 + int(last.removeprefix(self.prefix))
            if number > self.most:
                raise PayloadTooLarge("the signals of one name that a process gets", number, self.most)
            settlement = SettleWait(self.journal, f"{self.prefix}{number:08d}", "resolved", self.payload).apply(tx)
        if memo is not None:
            tx.rows.save_wait(row, memo)
        return settlement


class RevokeWaits(Command[int], frozen=True):
    """Revoke one wait, or all present and future waits of a journal."""

    journal: str
    name: str | None

    def apply(self, tx: Transaction) -> int:
        row = tx.journal(self.journal)
        row.check_here()
        if row.status == "waiting":
            tx.wake(row)  # the run must learn that no answer can come any more
        if self.name is not None:
            tx.rows.save_wait(row, Wait(row.id, self.name, "revoked"))
            return 1
        row.revoked = True
        tx.rows.save_journal(row)
        return tx.rows.revoke_waits(row)


def cancel_open(tx: Transaction, row: JournalRow, prefix: str) -> None:
    """Cancel the open waits of an ended run. Their names begin with the name of the run."""
    for name in tx.rows.open_waits(row, prefix):
        found = tx.rows.wait(row, name)
        if found is not None:
            tx.rows.save_wait(row, replace(found, state="cancelled"))


# ---- decisions ----


def decide_open_wait(row: JournalRow, found: Wait | None, command: OpenWait, now: int) -> Wait:
    """The wait after opening; `found` itself if it was open already.

    Its first deadline and question stay. A buffered resolution counts, unless the wait asks a question: an answer can't
    come before its question.
    """
    if row.revoked or (found is not None and found.state == "revoked"):
        raise WaitUnknown
    if found is not None and found.opened:
        return found
    opened = Wait(row.id, command.name, "open", command.deadline, kind=command.kind, body=command.body, at=now)
    if found is None or command.body is not None:
        return opened
    return replace(opened, state=found.state, payload=found.payload)


def decide_settle(row: JournalRow, found: Wait | None, command: SettleWait, now: Instant) -> Settlement:
    """The settlement of a wait; the first attempt wins.

    A resolution before its wait is buffered; one after the deadline is too late. A passed deadline counts as expired
    even before the expiry is written. An answer that names its question by digest settles only that question.
    """
    if row.revoked or (found is not None and found.state == "revoked"):
        raise WaitUnknown
    if found is None:
        if command.state != "resolved" or not command.early:
            raise WaitUnknown
        return Settlement(Wait(row.id, command.name, "resolved", None, command.payload, opened=False), won=True)
    # A token alone does not say which question it answers.
    blind = command.state == "resolved" and command.early and command.expect_digest is None and found.body is not None
    if blind or (command.expect_digest is not None and command.expect_digest != found.digest):
        raise ApprovalMismatch(row.id, found.name, command.expect_digest or "", found.digest)
    if found.state != "open":
        return Settlement(found, won=False)
    overdue = found.deadline is not None and found.deadline <= now.wall
    if command.state == "expired" and not overdue:
        return Settlement(found, won=False)
    state = "expired" if overdue else command.state
    payload = command.payload if state == "resolved" else None
    return Settlement(replace(found, state=state, payload=payload), won=state == command.state)


def wakes_waiting(row: JournalRow, found: Wait | None, after: Wait) -> bool:
    """True if a waiting journal must wake because one of its waits was just settled."""
    return row.status == "waiting" and after.state != "open" and (found is None or found.state == "open")


def signal_memo_payload(payload: bytes) -> bytes:
    """The payload of a memo: the digest of the signal's payload, as JSON."""
    return f'"{blob_digest(payload)}"'.encode()


def decide_consume(row: JournalRow, found: Wait | None, name: str, seq: int) -> Wait:
    """The wait as consumed by record `seq`. A resolution is consumed once."""
    if found is None:
        raise WaitConsumed(row.id, name, "unknown")
    if found.consumed or found.state != "resolved":
        raise WaitConsumed(row.id, name, "consumed" if found.consumed else found.state)
    return replace(found, consumed=seq)


# ---- stored rules ----


class StoredRule(msgspec.Struct, frozen=True):
    """One rule, in force until it is removed. Times are wall milliseconds."""

    id: int
    """Its number in the store; never used again."""
    agent: str
    """The agent that it applies to; "*" for every agent."""
    body: str
    """The rule itself, as JSON."""
    digest: str
    """SHA-256 of the body."""
    by: str
    at: int
    removed_by: str | None = None
    removed_at: int | None = None


class AddRule(Command[tuple[StoredRule, bool]], frozen=True):
    """Store a rule unless the same one is in force; answers the rule, and True if it is new."""

    agent: str
    body: str
    digest: str
    by: str

    def size(self) -> int:
        return len(self.body)

    def redact(self, redactor: Redactor) -> Self:
        redactor.check("rule", self.body)  # a redacted rule would be another rule
        return super().redact(redactor)

    def apply(self, tx: Transaction) -> tuple[StoredRule, bool]:
        found = tx.rows.rules.same(self.agent, self.digest)
        if found is not None:
            return found, False
        if tx.rows.rules.count(self.agent) >= tx.limits.rules:
            raise RulesFull(self.agent, tx.limits.rules)
        return tx.rows.rules.add(StoredRule(0, self.agent, self.body, self.digest, self.by, tx.now.wall)), True


class RemoveRule(Command[tuple[StoredRule, bool]], frozen=True):
    """Take a rule out of force; answers the rule, and True if this command removed it."""

    id: int
    by: str

    def apply(self, tx: Transaction) -> tuple[StoredRule, bool]:
        found = tx.rows.rules.find(self.id)
        if found is None:
            raise RuleUnknown(self.id)
        if found.removed_at is not None:
            return found, False
        removed = replace(found, removed_by=self.by, removed_at=tx.now.wall)
        tx.rows.rules.remove(removed)
        return removed, True


def rule_command(agent: str, body: str, by: str, limits: StoreLimits) -> AddRule:
    """The command that stores a rule; raises for an invalid value."""
    check_id("agent", agent)
    check_id("author", by)
    said = check_string("rule", body).encode()
    if len(said) > limits.rule_bytes:
        raise PayloadTooLarge("the rule", len(said), limits.rule_bytes)
    try:
        msgspec.json.decode(said)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidValue("$", f"a stored rule is JSON: {error}") from error
    return AddRule(agent, body, blob_digest(said), by)


def audit_rules(reader: Reader) -> Iterator[tuple[str, str, str]]:
    """Violated invariants of the stored rules: rule, place, finding."""
    in_force: set[tuple[str, str]] = set()
    for rule, sound in reader.rules.raw():
        where = f"rule {rule.id}"
        if not sound:
            yield "checksum", where, "the rule does not match its checksum or its seal"
            continue
        if blob_digest(rule.body.encode()) != rule.digest:
            yield "rule", where, "what it says does not match its digest"
        if (rule.removed_by is None) != (rule.removed_at is None):
            yield "rule", where, "its removal has no author or no time"
        if rule.removed_at is None:
            if (rule.agent, rule.digest) in in_force:
                yield "rule", where, "the same rule is in force twice"
            in_force.add((rule.agent, rule.digest))


# ---- tokens ----


def mint_token(secret: bytes, journal: str, name: str) -> str:
    """The bearer token of a wait; the same wait always has the same token."""
    claim = msgspec.json.encode([journal, name])
    return f"{_TOKEN_PREFIX}.{_armour(claim)}.{_armour(_sign(secret, claim))}"


def is_token(text: str) -> bool:
    """True if `text` looks like a token, valid or not."""
    return text.startswith(f"{_TOKEN_PREFIX}.")


def verify_token(secret: bytes, token: object) -> tuple[str, str]:
    """Journal and name of the wait of a token; `WaitUnknown` if this store did not make it."""
    if not isinstance(token, str) or len(token) > _MAX_TOKEN:
        raise WaitUnknown
    prefix, _, rest = token.partition(".")
    body, _, signature = rest.partition(".")
    try:
        claim, signed = _unarmour(body), _unarmour(signature)
    except (binascii.Error, ValueError):
        raise WaitUnknown from None
    if not hmac.compare_digest(signed, _sign(secret, claim)) or prefix != _TOKEN_PREFIX:
        raise WaitUnknown
    journal, name = msgspec.json.decode(claim, type=tuple[str, str])
    return journal, name


def _sign(secret: bytes, claim: bytes) -> bytes:
    return hmac.new(secret, b"holdfast:wait:1\n" + claim, hashlib.sha256).digest()


def _armour(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unarmour(text: str) -> bytes:
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _armour(raw) != text:  # one token, one spelling: unused low bits must be zero
        raise ValueError(text)
    return raw
