"""Approvals: the questions about tool calls that wait for a person, and the answers.

An answer belongs to one question, byte for byte. An answer that comes late, twice, or for another question does
nothing, and raises an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import errors, names
from holdfast.agent import Agent, prepare
from holdfast.effects.canonical import check as check_json
from holdfast.policy import approvals
from holdfast.tools.definition import Complaint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from holdfast.store import Store, contract


_PAGE: Final = 200
MAX_REASON: Final = 2_000
"""Longest reason of a denial, in characters."""
DEFAULT_APPROVER: Final = "a person"
"""Approver name if the caller names none."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that waits for a person, as it will run."""

    id: str
    session: str
    agent: str
    tool: str
    arguments: dict[str, Any]
    digest: str
    """The digest of the call as it will run: an approval is for this digest."""
    why: str
    rule: str
    asked: int
    expires: int | None
    sandbox: str | None = None
    always: str | None = None
    """The rule that would allow calls like this one from now on; None if rules can't express it."""
    host_call: str | None = None
    """The id of the call, if the host made it by `Runtime.call`; None for a call of a turn."""


_SHARED_FIELDS: Final = frozenset(Approval.__match_args__).difference(("expires", "always"))
"""Those that the question has, too."""


class Approvals:
    """The approvals of one store."""

    def __init__(self, store: Store, agents: Mapping[str, Agent]) -> None:
        self._store = store
        self._agents = agents

    async def all(self, session: str | None = None) -> list[Approval]:
        """The open approvals, oldest first."""
        found = [self._approval(wait, question) async for wait, question in self._open()]
        return [each for each in reversed(found) if session is None or each.session == session]

    async def approve(
        self, id: str, by: str | None, arguments: dict[str, Any] | None, always: str | None, digest: str | None
    ) -> Approval:
        """Approve a call, and return it; see `Runtime.approve`."""
        wait, question = await self._find(id)
        if digest is not None and digest != question.digest:
            raise errors.ApprovalUnknown(id, "it asks about another call by now; look at it again")
        if arguments is not None:
            if type(arguments) is not dict:
                raise errors.InvalidArgument("arguments", arguments, "an object with the arguments of the call")
            check_json(arguments)
            agent = self._agents.get(question.agent)
            tool = None if agent is None else agent.tools.get(question.tool)
            bound = None if tool is None else tool.bind(arguments)  # checked if this process has the tool
            if isinstance(bound, Complaint):
                raise errors.InvalidArgument("arguments", arguments, f"what {question.tool} takes ({bound.text})")
            # The call runs exactly as approved: a secret can't be redacted later, so it is refused.
            self._store.redactor.check_json("arguments", msgspec.json.encode(arguments))
        runs = question.arguments if arguments is None else arguments
        approved = approvals.Approved(question.digest_with(runs), _approver(by), arguments)
        rule = None
        if always is not None:
            if arguments is not None:
                raise errors.InvalidArgument("always", always, "left out where the arguments are changed")
            # The rule must be the one that was shown: it never allows more than calls like this one.
            approvals.parse_stored_rule(always)
            shown = self._approval(wait, question).always
            if shown is None:
                raise errors.InvalidArgument("always", always, "left out: no rule can be made for this call here")
            if msgspec.json.decode(always) != msgspec.json.decode(shown):
                raise errors.InvalidArgument("always", always, "the rule that Approval.always shows")
            rule = self._store.new_rule(question.agent, always, by=_approver(by) or DEFAULT_APPROVER)
        await self._answer(id, wait, approved, rule)
        return self._approval(wait, question)

    async def deny(self, id: str, reason: str, by: str | None) -> Approval:
        """Deny a call; the model reads the reason."""
        if type(reason) is not str or len(reason) > MAX_REASON:
            raise errors.InvalidArgument("reason", reason, f"text of at most {MAX_REASON:,} characters")
        check_json(reason)
        wait, question = await self._find(id)
        await self._answer(id, wait, approvals.Denied(reason, _approver(by)), None)
        return self._approval(wait, question)

    # ---- finding ----

    async def _open(self) -> AsyncIterator[tuple[contract.Wait, approvals.Question]]:
        last: contract.Wait | None = None
        while page := await self._store.open_waits(approvals.KIND, before=last, limit=_PAGE):
            for wait in page:
                question = approvals.read_question(wait.body or b"")
                if question is not None:
                    yield wait, question
            last = page[-1]

    async def _find(self, id: str) -> tuple[contract.Wait, approvals.Question]:
        names.check_id("approval", id)
        async for wait, question in self._open():
            if question.id == id:
                return wait, question
        raise errors.ApprovalUnknown(id, "it was answered, or its time was up, or there never was one")

    def _approval(self, wait: contract.Wait, question: approvals.Question) -> Approval:
        agent = self._agents.get(question.agent)
        always = None
        if agent is not None and question.tool in agent.tools and not question.each:
            always = approvals.narrowest_rule(prepare(agent).subject(question.tool, question.arguments))
        shown: dict[str, Any] = {name: getattr(question, name) for name in _SHARED_FIELDS}
        return Approval(**shown, expires=wait.deadline, always=always)

    # ---- answering ----

    async def _answer(
        self, id: str, wait: contract.Wait, answer: approvals.Approved | approvals.Denied, rule: Any
    ) -> None:
        value = msgspec.json.decode(msgspec.json.encode(answer))
        settlement = await self._store.answer_wait(wait.journal, wait.name, value, expect_digest=wait.digest, rule=rule)
        if not settlement.won:
            raise errors.ApprovalClosed(id, settlement.wait.state)


def _approver(by: object) -> str | None:
    return None if by is None else names.check_id("name", by)
