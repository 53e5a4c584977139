"""What one runtime hides: the secrets that its host gave, in all that it writes, shows and logs."""

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
from holdfast.turns.conversation import Entered, Said, Stop
from holdfast.turns.machine import Ending
from holdfast.turns.programs import Left

if TYPE_CHECKING:
    from holdfast.secrets.sources import SecretsInput
    from holdfast.store import Store


def make_secret_access(store: Store, given: SecretsInput) -> SecretAccess:
    """What lends the secrets of a host; what it lends is hidden in all that is written to `store`."""
    lender = SecretAccess(make_secrets(given), store.redactor)
    if given is not None:
        store.redactor.reserve(_journal_words())
        lender.hide_environment()
    return lender


def hide_secret(store: Store, name: str, value: str) -> None:
    """Hide a value that did not come by way of the host's secrets: that of a webhook, say."""
    store.redactor.reserve(_journal_words())
    store.redactor.register(name, value)


@cache
def _journal_words() -> frozenset[str]:
    """The words that what we write is made of, wherever it is written as JSON of our own."""
    told = (Record, ModelReply, Message, Said, Stop, Entered, Ending, TaskCall, Registration)
    return schema_words(
        *told, TriggerState, TriggerCommand, Question, Approved, Denied, ToolDecision, Compaction, Left, OutOf
    )
