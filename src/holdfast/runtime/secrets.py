"""The secrets of one runtime: available to tools, hidden in everything that it writes, shows and logs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from holdfast.messages import Message, ModelReply
from holdfast.policy.approvals import Approved, Denied, Question
from holdfast.policy.hooks import ToolDecision
from holdfast.policy.limits import OutOf
from holdfast.processes.state import Registration, TaskCall
from holdfast.records import Record
from holdfast.secrets.forms import schema_words
from holdfast.secrets.sources import SecretAccess, make_secrets
from holdfast.triggers.definition import TriggerCommand
from holdfast.triggers.state import TriggerState
from holdfast.turns.compaction.apply import Compaction
from holdfast.turns.conversation import CancelRequest, CheckpointOutcome, UserInput
from holdfast.turns.machine import Ending
from holdfast.turns.programs import ChangedVariables

if TYPE_CHECKING:
    from holdfast.secrets.sources import SecretsInput
    from holdfast.store import Store


def make_secret_access(store: Store, given: SecretsInput) -> SecretAccess:
    """Access to the secrets of the host; they are hidden in everything that is written to `store`."""
    access = SecretAccess(make_secrets(given), store.redactor)
    if given is not None:
        store.redactor.reserve(_journal_words())
        access.hide_environment()
    return access


def hide_secret(store: Store, name: str, value: str) -> None:
    """Hide a value that is not one of the host's secrets: the key of a webhook, say."""
    store.redactor.reserve(_journal_words())
    store.redactor.register(name, value)


@cache
def _journal_words() -> frozenset[str]:
    """Field names and tags of everything that we write as JSON: no secret may be one of these words."""
    records = (Record, ModelReply, Message, UserInput, CancelRequest, CheckpointOutcome, Ending, TaskCall, Registration)
    return schema_words(
        *records,
        TriggerState,
        TriggerCommand,
        Question,
        Approved,
        Denied,
        ToolDecision,
        Compaction,
        ChangedVariables,
        OutOf,
    )
