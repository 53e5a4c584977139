"""Holdfast: a runtime for agents that can't lose their place.

Importing this module is cheap. What it offers is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast import tools as tools
    from holdfast.agent import Agent as Agent
    from holdfast.effects.boundary import Boundary as Boundary
    from holdfast.effects.boundary import Effect as Effect
    from holdfast.effects.boundary import EffectContext as EffectContext
    from holdfast.effects.drive import drive as drive
    from holdfast.effects.drive import replay as replay
    from holdfast.effects.replay import Repeat as Repeat
    from holdfast.errors import AgentUnknown as AgentUnknown
    from holdfast.errors import AnswerInvalid as AnswerInvalid
    from holdfast.errors import ApprovalClosed as ApprovalClosed
    from holdfast.errors import ApprovalUnknown as ApprovalUnknown
    from holdfast.errors import AttachmentsFull as AttachmentsFull
    from holdfast.errors import AttachmentUnknown as AttachmentUnknown
    from holdfast.errors import CollectionRefused as CollectionRefused
    from holdfast.errors import ControlCancelled as ControlCancelled
    from holdfast.errors import CursorInvalid as CursorInvalid
    from holdfast.errors import EffectCancelled as EffectCancelled
    from holdfast.errors import EffectFailed as EffectFailed
    from holdfast.errors import EffectUnknown as EffectUnknown
    from holdfast.errors import Fenced as Fenced
    from holdfast.errors import ForkPointMissing as ForkPointMissing
    from holdfast.errors import GateInvalid as GateInvalid
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import HookTimeout as HookTimeout
    from holdfast.errors import KeyConflict as KeyConflict
    from holdfast.errors import LeaseHeld as LeaseHeld
    from holdfast.errors import MediaTypeMismatch as MediaTypeMismatch
    from holdfast.errors import ModelError as ModelError
    from holdfast.errors import ModelUnknown as ModelUnknown
    from holdfast.errors import NoneSucceeded as NoneSucceeded
    from holdfast.errors import NotASession as NotASession
    from holdfast.errors import PolicyInvalid as PolicyInvalid
    from holdfast.errors import PolicyMissing as PolicyMissing
    from holdfast.errors import ProgramsUnavailable as ProgramsUnavailable
    from holdfast.errors import ReplayMismatch as ReplayMismatch
    from holdfast.errors import RunFailed as RunFailed
    from holdfast.errors import RuntimeStopped as RuntimeStopped
    from holdfast.errors import ScheduleInvalid as ScheduleInvalid
    from holdfast.errors import StoreError as StoreError
    from holdfast.errors import TaskUnknown as TaskUnknown
    from holdfast.errors import TemplateInvalid as TemplateInvalid
    from holdfast.errors import TemplateUnfilled as TemplateUnfilled
    from holdfast.errors import ToolInvalid as ToolInvalid
    from holdfast.errors import TooManyRuntimes as TooManyRuntimes
    from holdfast.errors import TriggerConflict as TriggerConflict
    from holdfast.errors import TriggerDisabled as TriggerDisabled
    from holdfast.errors import TriggerInvalid as TriggerInvalid
    from holdfast.errors import TriggersFull as TriggersFull
    from holdfast.errors import TriggerUnknown as TriggerUnknown
    from holdfast.errors import TurnUnknown as TurnUnknown
    from holdfast.errors import UsageError as UsageError
    from holdfast.errors import WaitExpired as WaitExpired
    from holdfast.errors import WaitFailed as WaitFailed
    from holdfast.errors import WaitUnknown as WaitUnknown
    from holdfast.errors import WorldError as WorldError
    from holdfast.errors.caller import FunctionUnknown as FunctionUnknown
    from holdfast.errors.caller import ProcessConflict as ProcessConflict
    from holdfast.errors.caller import ProcessInvalid as ProcessInvalid
    from holdfast.errors.caller import ProcessPruned as ProcessPruned
    from holdfast.errors.caller import ProcessUnknown as ProcessUnknown
    from holdfast.errors.world import AgentTurnFailed as AgentTurnFailed
    from holdfast.errors.world import ProcessAbandoned as ProcessAbandoned
    from holdfast.errors.world import ProcessCancelled as ProcessCancelled
    from holdfast.errors.world import ProcessFailed as ProcessFailed
    from holdfast.events import ApprovalRequested as ApprovalRequested
    from holdfast.events import AttemptReset as AttemptReset
    from holdfast.events import CompactionPaused as CompactionPaused
    from holdfast.events import ContextBuilt as ContextBuilt
    from holdfast.events import ContextCompacted as ContextCompacted
    from holdfast.events import Event as Event
    from holdfast.events import Gap as Gap
    from holdfast.events import HandedOver as HandedOver
    from holdfast.events import HookFailed as HookFailed
    from holdfast.events import InputAccepted as InputAccepted
    from holdfast.events import LoopDetected as LoopDetected
    from holdfast.events import MessageCommitted as MessageCommitted
    from holdfast.events import ModelFailed as ModelFailed
    from holdfast.events import ModelNote as ModelNote
    from holdfast.events import ModelStarted as ModelStarted
    from holdfast.events import ProcessEnded as ProcessEnded
    from holdfast.events import ProcessStarted as ProcessStarted
    from holdfast.events import ProcessWaiting as ProcessWaiting
    from holdfast.events import ReasoningDelta as ReasoningDelta
    from holdfast.events import TurnResumed as TurnResumed
    from holdfast.events import TurnStarted as TurnStarted
    from holdfast.events import SubAgentStarted as SubAgentStarted
    from holdfast.events import TaskEnded as TaskEnded
    from holdfast.events import TaskProgressed as TaskProgressed
    from holdfast.events import TaskStarted as TaskStarted
    from holdfast.events import TextDelta as TextDelta
    from holdfast.events import ToolCallRequested as ToolCallRequested
    from holdfast.events import ToolCallDelta as ToolCallDelta
    from holdfast.events import ToolCallFinished as ToolCallFinished
    from holdfast.events import ToolCallAnnounced as ToolCallAnnounced
    from holdfast.events import ToolCallFinished as ToolCallFinished
    from holdfast.events import ToolCallProgress as ToolCallProgress
    from holdfast.events import ToolCallStarted as ToolCallStarted
    from holdfast.events import TurnCancelled as TurnCancelled
    from holdfast.events import TurnCompleted as TurnCompleted
    from holdfast.events import TurnFailed as TurnFailed
    from holdfast.events import TurnLimit as TurnLimit
    from holdfast.events import TurnWaiting as TurnWaiting
    from holdfast.events import UsageRecorded as UsageRecorded
    from holdfast.media import File as File
    from holdfast.messages import AssistantMessage as AssistantMessage
    from holdfast.messages import Attachment as Attachment
    from holdfast.messages import CallChunk as CallChunk
    from holdfast.messages import CallEnd as CallEnd
    from holdfast.messages import CallStart as CallStart
    from holdfast.messages import ModelReply as ModelReply
    from holdfast.messages import ModelRequest as ModelRequest
    from holdfast.messages import Reasoning as Reasoning
    from holdfast.messages import ReasoningChunk as ReasoningChunk
    from holdfast.messages import Refusal as Refusal
    from holdfast.messages import Settings as Settings
    from holdfast.messages import StreamEnd as StreamEnd
    from holdfast.messages import StreamEvent as StreamEvent
    from holdfast.messages import StreamNote as StreamNote
    from holdfast.messages import StreamReset as StreamReset
    from holdfast.messages import StreamStart as StreamStart
    from holdfast.messages import StreamUsage as StreamUsage
    from holdfast.messages import Text as Text
    from holdfast.messages import TextChunk as TextChunk
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
    from holdfast.policy.context import Compaction as Compaction
    from holdfast.policy.decisions import Policy as Policy
    from holdfast.policy.hooks import HookCall as HookCall
    from holdfast.policy.hooks import HookRequest as HookRequest
    from holdfast.policy.hooks import Hooks as Hooks
    from holdfast.policy.hooks import HookTurn as HookTurn
    from holdfast.policy.limits import Budget as Budget
    from holdfast.policy.limits import Limits as Limits
    from holdfast.policy.rules import Decision as Decision
    from holdfast.policy.rules import allow as allow
    from holdfast.policy.rules import ask as ask
    from holdfast.policy.rules import deny as deny
    from holdfast.policy.rules import within as within
    from holdfast.processes.context import ProcessContext as ProcessContext
    from holdfast.processes.definition import Procedure as Procedure
    from holdfast.processes.definition import process as process
    from holdfast.processes.handle import Process as Process
    from holdfast.processes.lists import PruneReport as PruneReport
    from holdfast.processes.state import ProcessEvent as ProcessEvent
    from holdfast.processes.state import ProcessLine as ProcessLine
    from holdfast.processes.state import Stuck as Stuck
    from holdfast.processes.task_state import TaskState as TaskState
    from holdfast.processes.task_state import TaskStatus as TaskStatus
    from holdfast.runtime import Control as Control
    from holdfast.runtime import EmitRequest as EmitRequest
    from holdfast.runtime import Emitted as Emitted
    from holdfast.runtime import Runtime as Runtime
    from holdfast.runtime import Session as Session
    from holdfast.runtime import Subscription as Subscription
    from holdfast.runtime import Turn as Turn
    from holdfast.runtime import TurnOutcome as TurnOutcome
    from holdfast.runtime import open as open
    from holdfast.runtime import run as run
    from holdfast.runtime.approvals import Approval as Approval
    from holdfast.runtime.deferrals import Resolve as Resolve
    from holdfast.runtime.requests import RecordedRequest as RecordedRequest
    from holdfast.runtime.runtime import LIVE as LIVE
    from holdfast.sandbox import MontySandbox as MontySandbox
    from holdfast.sandbox import ProgramLimits as ProgramLimits
    from holdfast.sandbox import Sandbox as Sandbox
    from holdfast.secrets.logs import RedactingFilter as RedactingFilter
    from holdfast.secrets.sources import Secrets as Secrets
    from holdfast.store import Collected as Collected
    from holdfast.store import Notification as Notification
    from holdfast.store import Store as Store
    from holdfast.store import StoreLimits as StoreLimits
    from holdfast.store import open_store as open_store
    from holdfast.toolkits.agents import SubAgentFailed as SubAgentFailed
    from holdfast.toolkits.agents import SubAgentRefused as SubAgentRefused
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
    from holdfast.tools.definition import Reach as Reach
    from holdfast.triggers import TriggerOptions as TriggerOptions
    from holdfast.triggers import cron as cron
    from holdfast.triggers import event as event
    from holdfast.triggers import interval as interval
    from holdfast.triggers import watch as watch
    from holdfast.triggers import webhook as webhook
    from holdfast.triggers.service import Delivery as Delivery
    from holdfast.triggers.service import EventReceipt as EventReceipt
    from holdfast.triggers.service import Trigger as Trigger
    from holdfast.triggers.service import TriggerStatus as TriggerStatus


__version__ = "0.1.0"
_HOMES = {
    "Admission": "holdfast.policy.admission",
    "Agent": "holdfast.agent",
    "AgentTurnFailed": "holdfast.errors.caller",
    "AgentUnknown": "holdfast.errors",
    "AnswerInvalid": "holdfast.errors",
    "Approval": "holdfast.runtime.approvals",
    "ApprovalClosed": "holdfast.errors",
    "ApprovalRequested": "holdfast.events",
    "ApprovalUnknown": "holdfast.errors",
    "AssistantMessage": "holdfast.messages",
    "Attachment": "holdfast.messages",
    "AttachmentUnknown": "holdfast.errors",
    "AttachmentsFull": "holdfast.errors",
    "AttemptReset": "holdfast.events",
    "Boundary": "holdfast.effects.boundary",
    "Budget": "holdfast.policy.limits",
    "CallChunk": "holdfast.messages",
    "CallEnd": "holdfast.messages",
    "CallLimits": "holdfast.models.limits",
    "CallStart": "holdfast.messages",
    "Collected": "holdfast.store",
    "CollectionRefused": "holdfast.errors",
    "Compaction": "holdfast.policy.context",
    "CompactionPaused": "holdfast.events",
    "Context": "holdfast.tools.context",
    "ContextBuilt": "holdfast.events",
    "ContextCompacted": "holdfast.events",
    "Control": "holdfast.runtime",
    "ControlCancelled": "holdfast.errors",
    "CursorInvalid": "holdfast.errors",
    "Decision": "holdfast.policy.rules",
    "Deferred": "holdfast.tools.definition",
    "Delivery": "holdfast.triggers.service",
    "Effect": "holdfast.effects.boundary",
    "EffectCancelled": "holdfast.errors",
    "EffectContext": "holdfast.effects.boundary",
    "EffectFailed": "holdfast.errors",
    "EffectUnknown": "holdfast.errors",
    "EmitRequest": "holdfast.runtime",
    "Emitted": "holdfast.runtime",
    "Event": "holdfast.events",
    "EventReceipt": "holdfast.triggers.service",
    "Fallback": "holdfast.models.fallback",
    "Fenced": "holdfast.errors",
    "File": "holdfast.media",
    "ForkPointMissing": "holdfast.errors",
    "FunctionUnknown": "holdfast.errors.caller",
    "Gap": "holdfast.events",
    "HandedOver": "holdfast.events",
    "GateInvalid": "holdfast.errors",
    "HoldfastError": "holdfast.errors",
    "HookCall": "holdfast.policy.hooks",
    "HookFailed": "holdfast.events",
    "HookRequest": "holdfast.policy.hooks",
    "HookTurn": "holdfast.policy.hooks",
    "Hooks": "holdfast.policy.hooks",
    "HttpModel": "holdfast.models.http",
    "InputAccepted": "holdfast.events",
    "KeyConflict": "holdfast.errors",
    "LIVE": "holdfast.runtime.runtime",
    "LeaseHeld": "holdfast.errors",
    "Limits": "holdfast.agent",
    "LoopDetected": "holdfast.events",
    "MessageCommitted": "holdfast.events",
    "Model": "holdfast.models",
    "MediaTypeMismatch": "holdfast.errors",
    "ModelError": "holdfast.errors",
    "ModelFailed": "holdfast.events",
    "ModelNote": "holdfast.events",
    "ModelReply": "holdfast.messages",
    "ModelRequest": "holdfast.messages",
    "ModelStarted": "holdfast.events",
    "ModelUnknown": "holdfast.errors",
    "MontySandbox": "holdfast.sandbox",
    "NoneSucceeded": "holdfast.errors",
    "NotASession": "holdfast.errors",
    "NotDone": "holdfast.tools",
    "Notification": "holdfast.store",
    "Policy": "holdfast.policy.decisions",
    "HookTimeout": "holdfast.errors",
    "PolicyInvalid": "holdfast.errors",
    "PolicyMissing": "holdfast.errors",
    "Price": "holdfast.models.prices",
    "Procedure": "holdfast.processes.definition",
    "Process": "holdfast.processes.handle",
    "ProcessAbandoned": "holdfast.errors.caller",
    "ProcessCancelled": "holdfast.errors.caller",
    "ProcessConflict": "holdfast.errors.caller",
    "ProcessContext": "holdfast.processes.context",
    "ProcessEnded": "holdfast.events",
    "ProcessEvent": "holdfast.processes.state",
    "ProcessFailed": "holdfast.errors.caller",
    "ProcessInvalid": "holdfast.errors.caller",
    "ProcessLine": "holdfast.processes.state",
    "ProcessPruned": "holdfast.errors.caller",
    "ProcessStarted": "holdfast.events",
    "ProcessUnknown": "holdfast.errors.caller",
    "ProcessWaiting": "holdfast.events",
    "ProgramLimits": "holdfast.sandbox",
    "ProgramsUnavailable": "holdfast.errors",
    "PruneReport": "holdfast.processes.lists",
    "Reach": "holdfast.tools.definition",
    "Reasoning": "holdfast.messages",
    "ReasoningChunk": "holdfast.messages",
    "ReasoningDelta": "holdfast.events",
    "RecordedModel": "holdfast.models.recorded",
    "RecordedRequest": "holdfast.runtime.requests",
    "RedactingFilter": "holdfast.secrets.logs",
    "Refusal": "holdfast.messages",
    "Repeat": "holdfast.effects.replay",
    "ReplayMismatch": "holdfast.errors",
    "Resolve": "holdfast.runtime.deferrals",
    "Retry": "holdfast.models.retry",
    "RunFailed": "holdfast.errors",
    "TurnResumed": "holdfast.events",
    "TurnStarted": "holdfast.events",
    "SubAgentFailed": "holdfast.toolkits.agents",
    "SubAgentRefused": "holdfast.toolkits.agents",
    "SubAgentStarted": "holdfast.events",
    "agent_tool": "holdfast.toolkits.agents",
    "Runtime": "holdfast.runtime",
    "RuntimeStopped": "holdfast.errors",
    "TooManyRuntimes": "holdfast.errors",
    "Sandbox": "holdfast.sandbox",
    "ScheduleInvalid": "holdfast.errors",
    "Secrets": "holdfast.secrets.sources",
    "Session": "holdfast.runtime",
    "Settings": "holdfast.messages",
    "Store": "holdfast.store",
    "StoreError": "holdfast.errors",
    "StoreLimits": "holdfast.store",
    "StreamEnd": "holdfast.messages",
    "StreamEvent": "holdfast.messages",
    "StreamNote": "holdfast.messages",
    "StreamReset": "holdfast.messages",
    "StreamStart": "holdfast.messages",
    "StreamUsage": "holdfast.messages",
    "Stuck": "holdfast.processes.state",
    "Subscription": "holdfast.runtime",
    "TaskEnded": "holdfast.events",
    "TaskProgressed": "holdfast.events",
    "TaskStarted": "holdfast.events",
    "TaskState": "holdfast.processes.task_state",
    "TaskStatus": "holdfast.processes.task_state",
    "TaskUnknown": "holdfast.errors",
    "TemplateInvalid": "holdfast.errors",
    "TemplateUnfilled": "holdfast.errors",
    "Text": "holdfast.messages",
    "TextChunk": "holdfast.messages",
    "TextDelta": "holdfast.events",
    "Timeouts": "holdfast.models.transport",
    "Tool": "holdfast.tools",
    "ToolCall": "holdfast.messages",
    "ToolCallRequested": "holdfast.events",
    "ToolCallDelta": "holdfast.events",
    "ToolCallFinished": "holdfast.events",
    "ToolCallAnnounced": "holdfast.events",
    "ToolCallFinished": "holdfast.events",
    "ToolCallProgress": "holdfast.events",
    "ToolCallStarted": "holdfast.events",
    "ToolInvalid": "holdfast.errors",
    "ToolMessage": "holdfast.messages",
    "ToolResult": "holdfast.messages",
    "ToolRetry": "holdfast.tools",
    "ToolRetryPolicy": "holdfast.tools",
    "Toolset": "holdfast.tools",
    "Trigger": "holdfast.triggers.service",
    "TriggerConflict": "holdfast.errors",
    "TriggerDisabled": "holdfast.errors",
    "TriggerInvalid": "holdfast.errors",
    "TriggerOptions": "holdfast.triggers",
    "TriggerStatus": "holdfast.triggers.service",
    "TriggerUnknown": "holdfast.errors",
    "TriggersFull": "holdfast.errors",
    "Turn": "holdfast.runtime",
    "TurnCancelled": "holdfast.events",
    "TurnCompleted": "holdfast.events",
    "TurnFailed": "holdfast.events",
    "TurnLimit": "holdfast.events",
    "TurnOutcome": "holdfast.runtime",
    "TurnUnknown": "holdfast.errors",
    "TurnWaiting": "holdfast.events",
    "Usage": "holdfast.messages",
    "UsageError": "holdfast.errors",
    "UsageRecorded": "holdfast.events",
    "UserMessage": "holdfast.messages",
    "WaitExpired": "holdfast.errors",
    "WaitFailed": "holdfast.errors",
    "WaitUnknown": "holdfast.errors",
    "WorldError": "holdfast.errors",
    "allow": "holdfast.policy.rules",
    "ask": "holdfast.policy.rules",
    "cron": "holdfast.triggers",
    "deny": "holdfast.policy.rules",
    "drive": "holdfast.effects.drive",
    "event": "holdfast.triggers",
    "handoff": "holdfast.toolkits.agents",
    "interval": "holdfast.triggers",
    "model": "holdfast.models",
    "open": "holdfast.runtime",
    "open_store": "holdfast.store",
    "process": "holdfast.processes.definition",
    "replay": "holdfast.effects.drive",
    "run": "holdfast.runtime",
    "tool": "holdfast.tools",
    "toolset": "holdfast.tools",
    "watch": "holdfast.triggers",
    "webhook": "holdfast.triggers",
    "within": "holdfast.policy.rules",
}
_PLACES = frozenset(("tools",))
"""Modules that are a part of the door: `hf.tools.files(...)`."""
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]
if not TYPE_CHECKING:  # type checkers see the imports above, and nothing else

    def __getattr__(name: str) -> object:
        if name in _PLACES:
            return import_module(f"holdfast.{name}")
        home = _HOMES.get(name)
        if home is None:
            message = f"module 'holdfast' has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_PLACES})
