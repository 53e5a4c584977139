"""Whether an answer from outside fits the call that it is for, before it is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from holdfast.effects.canonical import canonical
from holdfast.effects.envelope import scope_of, segment
from holdfast.errors import AnswerInvalid, AskAnswerInvalid, JournalMissing
from holdfast.runtime.interrupted import is_ask, is_finding
from holdfast.tasks import is_task_id
from holdfast.turns.keys import DEFERRAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.agent import Agent
    from holdfast.store import Store
    from holdfast.tools.definition import AnyTool


async def check_answer(store: Store, agents: Mapping[str, Agent], key: str, value: object) -> None:
    """Refuse a value that is no result of the tool, where that tool is known here; otherwise it is checked later.

    Only while it would count: whoever comes too late learns that.
    """
    body = canonical(value)  # first: what is wrong with it must not depend on whether the key is good
    journal, name = store.wait_of(key)
    if is_ask(name):
        await _check_finding(store, agents, journal, name, value)
        return
    if not name.endswith(f"/{DEFERRAL}"):
        return
    tool = await _tool_of(store, agents, journal, name.removesuffix(f"/{DEFERRAL}"))
    if tool is not None and not await _is_over(store, journal, name):
        _check_result(tool, body)


async def _check_finding(store: Store, agents: Mapping[str, Agent], journal: str, name: str, value: object) -> None:
    """Refuse an answer that does not say what came of an interrupted call, or whose result does not fit its tool."""
    if await _is_over(store, journal, name):
        return
    tool = await _tool_of(store, agents, journal, scope_of(scope_of(name)))
    if not is_finding(value):
        if tool is not None and tool.on_interrupt != "ask":
            return  # its reconcile function waits for something under the same name
        raise AskAnswerInvalid(journal, name, value)
    if tool is not None and isinstance(value, dict) and "done" in value:
        _check_result(tool, canonical(cast("dict[str, object]", value)["done"]))


async def _is_over(store: Store, journal: str, name: str) -> bool:
    wait = await store.wait(journal, name)
    return wait is not None and wait.state != "open"


def _check_result(tool: AnyTool, body: bytes) -> None:
    from holdfast.tools.returning import complaint_about  # noqa: PLC0415  pydantic only when it is needed

    complaint = complaint_about(tool.function, body)
    if complaint is not None:
        raise AnswerInvalid(tool.name, complaint)


async def _tool_of(store: Store, agents: Mapping[str, Agent], journal: str, call: str) -> AnyTool | None:
    """The tool of the call with the key `call`, where its agent is known here."""
    try:
        agent = agents.get((await store.journal(journal)).agent or "")
    except JournalMissing:
        return None
    if agent is None:
        return None
    called = call.rpartition("/")[2]
    if is_task_id(journal):
        return next((tool for tool in agent.tools.values() if segment(tool.name) == called), None)
    return agent.tools.get(called.partition(".")[2])
