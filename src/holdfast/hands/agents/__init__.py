"""Agents as tools of agents: `agent_tool`, `handoff`."""

from holdfast.hands.agents.errors import SubAgentFailed, SubAgentRefused
from holdfast.hands.agents.family import WAIT, Delegation, agent_tool, sub_agents
from holdfast.hands.agents.handing import Handoff, handoff, handoffs
from holdfast.hands.agents.order import Child, Order

__all__ = [
    "WAIT",
    "Child",
    "Delegation",
    "Handoff",
    "Order",
    "SubAgentFailed",
    "SubAgentRefused",
    "agent_tool",
    "handoff",
    "handoffs",
    "sub_agents",
]
