"""Holdfast: a runtime for agents that can't lose their place.

Importing this module is cheap: it loads each name when that is first used. `hf.events` has all events, `hf.errors` all
errors, `hf.messages` all parts of a conversation, `hf.telemetry` tracing, `hf.tools` the toolkits.
"""

from __future__ import annotations

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast import events as events
    from holdfast import messages as messages
    from holdfast import telemetry as telemetry
    from holdfast import tools as tools
    from holdfast.agent import Agent as Agent
    from holdfast.effects.replay import Repeat as Repeat
    from holdfast.errors import ApprovalClosed as ApprovalClosed
    from holdfast.errors import EffectFailed as EffectFailed
    from holdfast.errors import EffectUnknown as EffectUnknown
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import KeyConflict as KeyConflict
    from holdfast.errors import ModelError as ModelError
    from holdfast.errors import ProcessFailed as ProcessFailed
    from holdfast.errors import ReplayMismatch as ReplayMismatch
    from holdfast.errors import RuntimeStopped as RuntimeStopped
    from holdfast.errors import StoreError as StoreError
    from holdfast.errors import UsageError as UsageError
    from holdfast.errors import WaitExpired as WaitExpired
    from holdfast.errors import WorldError as WorldError
    from holdfast.events import ApprovalRequested as ApprovalRequested
    from holdfast.events import Event as Event
    from holdfast.events import MessageCommitted as MessageCommitted
    from holdfast.events import TextDelta as TextDelta
    from holdfast.events import ToolCallFinished as ToolCallFinished
    from holdfast.events import ToolCallRequested as ToolCallRequested
    from holdfast.events import TurnCancelled as TurnCancelled
    from holdfast.events import TurnCompleted as TurnCompleted
    from holdfast.events import TurnFailed as TurnFailed
    from holdfast.events import TurnLimit as TurnLimit
    from holdfast.events import TurnStarted as TurnStarted
    from holdfast.events import TurnWaiting as TurnWaiting
    from holdfast.media import File as File
    from holdfast.messages import AssistantMessage as AssistantMessage
    from holdfast.messages import Attachment as Attachment
    from holdfast.messages import ModelReply as ModelReply
    from holdfast.messages import ModelRequest as ModelRequest
    from holdfast.messages import Settings as Settings
    from holdfast.messages import StreamEvent as StreamEvent
    from holdfast.messages import Text as Text
    from holdfast.messages import ToolCall as ToolCall
    from holdfast.messages import ToolMessage as ToolMessage
    from holdfast.messages import ToolResult as ToolResult
    from holdfast.messages import Usage as Usage
    from holdfast.messages import UserMessage as UserMessage
    from holdfast.models import Model as Model
    from holdfast.models import model as model
    from holdfast.models.fallback import Fallback as Fallback
    from holdfast.models.http import HttpModel as HttpModel
    from holdfast.models.limits import CallLimits as CallLimits
    from holdfast.models.prices import Price as Price
    from holdfast.models.recorded import RecordedModel as RecordedModel
    from holdfast.models.retry import Retry as Retry
    from holdfast.models.transport import Timeouts as Timeouts
    from holdfast.policy.admission import Admission as Admission
    from holdfast.policy.hooks import HookCall as HookCall
    from holdfast.policy.hooks import HookRequest as HookRequest
    from holdfast.policy.hooks import Hooks as Hooks
    from holdfast.policy.hooks import TurnContext as TurnContext
    from holdfast.policy.limits import Budget as Budget
    from holdfast.policy.limits import Limits as Limits
    from holdfast.policy.rules import Decision as Decision
    from holdfast.policy.rules import Policy as Policy
    from holdfast.policy.rules import Reach as Reach
    from holdfast.policy.rules import allow as allow
    from holdfast.policy.rules import ask as ask
    from holdfast.policy.rules import deny as deny
    from holdfast.policy.rules import within as within
    from holdfast.processes.context import ProcessContext as ProcessContext
    from holdfast.processes.definition import process as process
    from holdfast.processes.service import Process as Process
    from holdfast.runtime.approvals import Approval as Approval
    from holdfast.runtime.deferrals import Resolve as Resolve
    from holdfast.runtime.open import open as open
    from holdfast.runtime.open import run as run
    from holdfast.runtime.runtime import Runtime as Runtime
    from holdfast.runtime.session import Session as Session
    from holdfast.runtime.subscriptions import Control as Control
    from holdfast.runtime.subscriptions import EmitRequest as EmitRequest
    from holdfast.runtime.subscriptions import Emitted as Emitted
    from holdfast.runtime.subscriptions import Subscription as Subscription
    from holdfast.runtime.sync import open_sync as open_sync
    from holdfast.runtime.sync import run_sync as run_sync
    from holdfast.runtime.turn import Turn as Turn
    from holdfast.runtime.turn import TurnOutcome as TurnOutcome
    from holdfast.sandbox import MontySandbox as MontySandbox
    from holdfast.sandbox import ProgramLimits as ProgramLimits
    from holdfast.sandbox import Sandbox as Sandbox
    from holdfast.secrets.logs import RedactingFilter as RedactingFilter
    from holdfast.secrets.sources import Secrets as Secrets
    from holdfast.store import Notification as Notification
    from holdfast.store import Store as Store
    from holdfast.store import StoreLimits as StoreLimits
    from holdfast.store import open_store as open_store
    from holdfast.toolkits.agents import agent_tool as agent_tool
    from holdfast.toolkits.agents import handoff as handoff
    from holdfast.tools import NotDone as NotDone
    from holdfast.tools import Tool as Tool
    from holdfast.tools import ToolRetry as ToolRetry
    from holdfast.tools import ToolRetryPolicy as ToolRetryPolicy
    from holdfast.tools import Toolset as Toolset
    from holdfast.tools import tool as tool
    from holdfast.tools import toolset as toolset
    from holdfast.tools.context import Context as Context
    from holdfast.tools.definition import Deferred as Deferred
    from holdfast.tools.providers import ProvidedTool as ProvidedTool
    from holdfast.tools.providers import ToolProvider as ToolProvider
    from holdfast.triggers.definition import TriggerOptions as TriggerOptions
    from holdfast.triggers.definition import cron as cron
    from holdfast.triggers.definition import event as event
    from holdfast.triggers.definition import interval as interval
    from holdfast.triggers.definition import watch as watch
    from holdfast.triggers.definition import webhook as webhook
    from holdfast.triggers.service import Delivery as Delivery
    from holdfast.triggers.service import Trigger as Trigger
    from holdfast.turns.compaction.budget import Compaction as Compaction


__version__ = "0.1.0"
_MODULES = frozenset(("errors", "events", "messages", "telemetry", "tools"))
_NAMES = {
    "holdfast.agent": "Agent",
    "holdfast.effects.replay": "Repeat",
    "holdfast.errors": """ApprovalClosed EffectFailed EffectUnknown HoldfastError KeyConflict ModelError ProcessFailed
        ReplayMismatch RuntimeStopped StoreError UsageError WaitExpired WorldError""",
    "holdfast.events": """ApprovalRequested Event MessageCommitted TextDelta ToolCallFinished ToolCallRequested
        TurnCancelled TurnCompleted TurnFailed TurnLimit TurnStarted TurnWaiting""",
    "holdfast.media": "File",
    "holdfast.messages": """AssistantMessage Attachment ModelReply ModelRequest Settings StreamEvent Text ToolCall
        ToolMessage ToolResult Usage UserMessage""",
    "holdfast.models": "Model model",
    "holdfast.models.fallback": "Fallback",
    "holdfast.models.http": "HttpModel",
    "holdfast.models.limits": "CallLimits",
    "holdfast.models.prices": "Price",
    "holdfast.models.recorded": "RecordedModel",
    "holdfast.models.retry": "Retry",
    "holdfast.models.transport": "Timeouts",
    "holdfast.policy.admission": "Admission",
    "holdfast.turns.compaction.budget": "Compaction",
    "holdfast.policy.hooks": "HookCall HookRequest TurnContext Hooks",
    "holdfast.policy.limits": "Budget Limits",
    "holdfast.policy.rules": "Decision Policy Reach allow ask deny within",
    "holdfast.processes.context": "ProcessContext",
    "holdfast.processes.definition": "process",
    "holdfast.processes.service": "Process",
    "holdfast.runtime.open": "open run",
    "holdfast.runtime.runtime": "Runtime",
    "holdfast.runtime.session": "Session",
    "holdfast.runtime.subscriptions": "Control EmitRequest Emitted Subscription",
    "holdfast.runtime.sync": "open_sync run_sync",
    "holdfast.runtime.turn": "Turn TurnOutcome",
    "holdfast.runtime.approvals": "Approval",
    "holdfast.runtime.deferrals": "Resolve",
    "holdfast.sandbox": "MontySandbox ProgramLimits Sandbox",
    "holdfast.secrets.logs": "RedactingFilter",
    "holdfast.secrets.sources": "Secrets",
    "holdfast.store": "Notification Store StoreLimits open_store",
    "holdfast.toolkits.agents": "agent_tool handoff",
    "holdfast.tools": "NotDone Tool ToolRetry ToolRetryPolicy Toolset tool toolset",
    "holdfast.tools.context": "Context",
    "holdfast.tools.definition": "Deferred",
    "holdfast.tools.providers": "ProvidedTool ToolProvider",
    "holdfast.triggers.definition": "TriggerOptions cron event interval watch webhook",
    "holdfast.triggers.service": "Delivery Trigger",
}
"""The names that each module offers here."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_loading = RLock()  # threads that begin to load modules at different ends would wait for each other
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]
if not TYPE_CHECKING:  # type checkers see only the imports above

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"holdfast.{name}")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        with _loading:
            value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
