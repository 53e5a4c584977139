"""Agents as tools of agents: `agent_tool`."""

from holdfast.hands.agents.errors import SubAgentFailed, SubAgentRefused
from holdfast.hands.agents.family import WAIT, Delegation, agent_tool, sub_agents
from holdfast.hands.agents.order import Child, Order

__all__ = ["WAIT", "Child", "Delegation", "Order", "SubAgentFailed", "SubAgentRefused", "agent_tool", "sub_agents"]
