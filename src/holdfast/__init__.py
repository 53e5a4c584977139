"""Holdfast: a runtime for agents that can't lose their place.

Importing this module is cheap. What it offers is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast import tools as tools
    from holdfast.agent import Agent as Agent
    from holdfast.agent import Limits as Limits
    from holdfast.attachments import File as File
    from holdfast.driving import drive as drive
    from holdfast.driving import replay as replay
    from holdfast.effects.boundary import Boundary as Boundary
    from holdfast.effects.boundary import Effect as Effect
    from holdfast.effects.boundary import EffectContext as EffectContext
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
    from holdfast.errors.processes import AgentTurnFailed as AgentTurnFailed
    from holdfast.errors.processes import FunctionUnknown as FunctionUnknown
    from holdfast.errors.processes import ProcessAbandoned as ProcessAbandoned
    from holdfast.errors.processes import ProcessCancelled as ProcessCancelled
    from holdfast.errors.processes import ProcessConflict as ProcessConflict
    from holdfast.errors.processes import ProcessFailed as ProcessFailed
    from holdfast.errors.processes import ProcessInvalid as ProcessInvalid
    from holdfast.errors.processes import ProcessPruned as ProcessPruned
    from holdfast.errors.processes import ProcessUnknown as ProcessUnknown
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
    from holdfast.events import RunResumed as RunResumed
    from holdfast.events import RunStarted as RunStarted
    from holdfast.events import SubAgentStarted as SubAgentStarted
    from holdfast.events import TaskEnded as TaskEnded
    from holdfast.events import TaskProgressed as TaskProgressed
    from holdfast.events import TaskStarted as TaskStarted
    from holdfast.events import TextDelta as TextDelta
    from holdfast.events import ToolCallCompleted as ToolCallCompleted
    from holdfast.events import ToolCallDelta as ToolCallDelta
    from holdfast.events import ToolCallFinished as ToolCallFinished
    from holdfast.events import ToolCallStarted as ToolCallStarted
    from holdfast.events import ToolExecutionFinished as ToolExecutionFinished
    from holdfast.events import ToolExecutionProgress as ToolExecutionProgress
    from holdfast.events import ToolExecutionStarted as ToolExecutionStarted
    from holdfast.events import TurnCancelled as TurnCancelled
    from holdfast.events import TurnCompleted as TurnCompleted
    from holdfast.events import TurnFailed as TurnFailed
    from holdfast.events import TurnLimit as TurnLimit
    from holdfast.events import TurnWaiting as TurnWaiting
    from holdfast.events import UsageRecorded as UsageRecorded
    from holdfast.hands.agents.errors import SubAgentFailed as SubAgentFailed
    from holdfast.hands.agents.errors import SubAgentRefused as SubAgentRefused
    from holdfast.hands.agents.family import agent_tool as agent_tool
    from holdfast.hands.agents.handing import handoff as handoff
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
    from holdfast.policy.deciding import Policy as Policy
    from holdfast.policy.hooks import HookCall as HookCall
    from holdfast.policy.hooks import HookRequest as HookRequest
    from holdfast.policy.hooks import Hooks as Hooks
    from holdfast.policy.hooks import HookTurn as HookTurn
    from holdfast.policy.limits import Budget as Budget
    from holdfast.policy.making import allow as allow
    from holdfast.policy.making import ask as ask
    from holdfast.policy.making import deny as deny
    from holdfast.policy.making import within as within
    from holdfast.policy.subject import Decision as Decision
    from holdfast.processes.context import ProcessContext as ProcessContext
    from holdfast.processes.definition import Procedure as Procedure
    from holdfast.processes.definition import process as process
    from holdfast.processes.pruning import PruneReport as PruneReport
    from holdfast.processes.stuck import Stuck as Stuck
    from holdfast.processes.timeline import ProcessEvent as ProcessEvent
    from holdfast.processes.timeline import ProcessLine as ProcessLine
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
    from holdfast.runtime.approving import Approval as Approval
    from holdfast.runtime.process_handle import Process as Process
    from holdfast.runtime.requests import RecordedRequest as RecordedRequest
    from holdfast.runtime.resolving import Resolve as Resolve
    from holdfast.runtime.runtime import LIVE as LIVE
    from holdfast.runtime.triggers import Delivery as Delivery
    from holdfast.runtime.triggers import EventReceipt as EventReceipt
    from holdfast.runtime.triggers import Trigger as Trigger
    from holdfast.runtime.triggers import TriggerStatus as TriggerStatus
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
    from holdfast.tasks import TaskState as TaskState
    from holdfast.tasks import TaskStatus as TaskStatus
    from holdfast.tools import NotDone as NotDone
    from holdfast.tools import Tool as Tool
    from holdfast.tools import ToolRetry as ToolRetry
    from holdfast.tools import ToolRetryPolicy as ToolRetryPolicy
    from holdfast.tools import Toolset as Toolset
    from holdfast.tools import tool as tool
    from holdfast.tools import toolset as toolset
    from holdfast.tools.context import Context as Context
    from holdfast.tools.deferral import Deferred as Deferred
    from holdfast.tools.reach import Reach as Reach
    from holdfast.triggers import TriggerOptions as TriggerOptions
    from holdfast.triggers import cron as cron
    from holdfast.triggers import event as event
    from holdfast.triggers import interval as interval
    from holdfast.triggers import watch as watch
    from holdfast.triggers import webhook as webhook

__version__ = "0.1.0"

_HOMES = {
    "Admission": "holdfast.policy.admission",
    "Agent": "holdfast.agent",
    "AgentTurnFailed": "holdfast.errors.processes",
    "AgentUnknown": "holdfast.errors",
    "AnswerInvalid": "holdfast.errors",
    "Approval": "holdfast.runtime.approving",
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
    "Decision": "holdfast.policy.subject",
    "Deferred": "holdfast.tools.deferral",
    "Delivery": "holdfast.runtime.triggers",
    "Effect": "holdfast.effects.boundary",
    "EffectCancelled": "holdfast.errors",
    "EffectContext": "holdfast.effects.boundary",
    "EffectFailed": "holdfast.errors",
    "EffectUnknown": "holdfast.errors",
    "EmitRequest": "holdfast.runtime",
    "Emitted": "holdfast.runtime",
    "Event": "holdfast.events",
    "EventReceipt": "holdfast.runtime.triggers",
    "Fallback": "holdfast.models.fallback",
    "Fenced": "holdfast.errors",
    "File": "holdfast.attachments",
    "ForkPointMissing": "holdfast.errors",
    "FunctionUnknown": "holdfast.errors.processes",
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
    "Policy": "holdfast.policy.deciding",
    "HookTimeout": "holdfast.errors",
    "PolicyInvalid": "holdfast.errors",
    "PolicyMissing": "holdfast.errors",
    "Price": "holdfast.models.prices",
    "Procedure": "holdfast.processes.definition",
    "Process": "holdfast.runtime.process_handle",
    "ProcessAbandoned": "holdfast.errors.processes",
    "ProcessCancelled": "holdfast.errors.processes",
    "ProcessConflict": "holdfast.errors.processes",
    "ProcessContext": "holdfast.processes.context",
    "ProcessEnded": "holdfast.events",
    "ProcessEvent": "holdfast.processes.timeline",
    "ProcessFailed": "holdfast.errors.processes",
    "ProcessInvalid": "holdfast.errors.processes",
    "ProcessLine": "holdfast.processes.timeline",
    "ProcessPruned": "holdfast.errors.processes",
    "ProcessStarted": "holdfast.events",
    "ProcessUnknown": "holdfast.errors.processes",
    "ProcessWaiting": "holdfast.events",
    "ProgramLimits": "holdfast.sandbox",
    "ProgramsUnavailable": "holdfast.errors",
    "PruneReport": "holdfast.processes.pruning",
    "Reach": "holdfast.tools.reach",
    "Reasoning": "holdfast.messages",
    "ReasoningChunk": "holdfast.messages",
    "ReasoningDelta": "holdfast.events",
    "RecordedModel": "holdfast.models.recorded",
    "RecordedRequest": "holdfast.runtime.requests",
    "RedactingFilter": "holdfast.secrets.logs",
    "Refusal": "holdfast.messages",
    "Repeat": "holdfast.effects.replay",
    "ReplayMismatch": "holdfast.errors",
    "Resolve": "holdfast.runtime.resolving",
    "Retry": "holdfast.models.retry",
    "RunFailed": "holdfast.errors",
    "RunResumed": "holdfast.events",
    "RunStarted": "holdfast.events",
    "SubAgentFailed": "holdfast.hands.agents.errors",
    "SubAgentRefused": "holdfast.hands.agents.errors",
    "SubAgentStarted": "holdfast.events",
    "agent_tool": "holdfast.hands.agents.family",
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
    "Stuck": "holdfast.processes.stuck",
    "Subscription": "holdfast.runtime",
    "TaskEnded": "holdfast.events",
    "TaskProgressed": "holdfast.events",
    "TaskStarted": "holdfast.events",
    "TaskState": "holdfast.tasks",
    "TaskStatus": "holdfast.tasks",
    "TaskUnknown": "holdfast.errors",
    "TemplateInvalid": "holdfast.errors",
    "TemplateUnfilled": "holdfast.errors",
    "Text": "holdfast.messages",
    "TextChunk": "holdfast.messages",
    "TextDelta": "holdfast.events",
    "Timeouts": "holdfast.models.transport",
    "Tool": "holdfast.tools",
    "ToolCall": "holdfast.messages",
    "ToolCallCompleted": "holdfast.events",
    "ToolCallDelta": "holdfast.events",
    "ToolCallFinished": "holdfast.events",
    "ToolCallStarted": "holdfast.events",
    "ToolExecutionFinished": "holdfast.events",
    "ToolExecutionProgress": "holdfast.events",
    "ToolExecutionStarted": "holdfast.events",
    "ToolInvalid": "holdfast.errors",
    "ToolMessage": "holdfast.messages",
    "ToolResult": "holdfast.messages",
    "ToolRetry": "holdfast.tools",
    "ToolRetryPolicy": "holdfast.tools",
    "Toolset": "holdfast.tools",
    "Trigger": "holdfast.runtime.triggers",
    "TriggerConflict": "holdfast.errors",
    "TriggerDisabled": "holdfast.errors",
    "TriggerInvalid": "holdfast.errors",
    "TriggerOptions": "holdfast.triggers",
    "TriggerStatus": "holdfast.runtime.triggers",
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
    "allow": "holdfast.policy.making",
    "ask": "holdfast.policy.making",
    "cron": "holdfast.triggers",
    "deny": "holdfast.policy.making",
    "drive": "holdfast.driving",
    "event": "holdfast.triggers",
    "handoff": "holdfast.hands.agents.handing",
    "interval": "holdfast.triggers",
    "model": "holdfast.models",
    "open": "holdfast.runtime",
    "open_store": "holdfast.store",
    "process": "holdfast.processes.definition",
    "replay": "holdfast.driving",
    "run": "holdfast.runtime",
    "tool": "holdfast.tools",
    "toolset": "holdfast.tools",
    "watch": "holdfast.triggers",
    "webhook": "holdfast.triggers",
    "within": "holdfast.policy.making",
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
