"""Whether an answer from outside fits the call that it is for, before it is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.effects.canonical import canonical
from holdfast.effects.envelope import segment
from holdfast.errors import AnswerInvalid, JournalMissing
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
    if not name.endswith(f"/{DEFERRAL}"):
        return
    tool = await _tool_of(store, agents, journal, name)
    if tool is None:
        return
    wait = await store.wait(journal, name)
    if wait is not None and wait.state != "open":
        return
    from holdfast.tools.returning import complaint_about  # noqa: PLC0415  pydantic only when it is needed

    complaint = complaint_about(tool.function, body)
    if complaint is not None:
        raise AnswerInvalid(tool.name, complaint)


async def _tool_of(store: Store, agents: Mapping[str, Agent], journal: str, name: str) -> AnyTool | None:
    try:
        agent = agents.get((await store.journal(journal)).agent or "")
    except JournalMissing:
        return None
    if agent is None:
        return None
    called = name.removesuffix(f"/{DEFERRAL}").rpartition("/")[2]
    if is_task_id(journal):
        return next((tool for tool in agent.tools.values() if segment(tool.name) == called), None)
    return agent.tools.get(called.partition(".")[2])
