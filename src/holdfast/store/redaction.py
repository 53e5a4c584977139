"""Redaction of commands: no secret reaches a store, whoever calls it.

Contents are redacted. Names (ids, keys, scopes) must stay as they are to be found again, so a name with a secret is
refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from holdfast.errors import InvariantBroken
from holdfast.secrets.documents import redact_record
from holdfast.store.admission import NoteRefusal, SetTerms
from holdfast.store.attachments import PutAttachment, ShareAttachment
from holdfast.store.checksum import blob_digest, input_digest
from holdfast.store.contract import (
    Accept,
    Append,
    Claim,
    Fork,
    OpenJournal,
    OpenWait,
    PutBlob,
    Quarantine,
    ReadPosition,
    Release,
    Renew,
    RevokeWaits,
    SettleNext,
    SettleWait,
)
from holdfast.store.memories import DeleteMemory, PutMemory
from holdfast.store.notifications import DeliverNotifications, Notify, Ripen, SettleNotification
from holdfast.store.retention import (
    CollectBlobs,
    EmptyInputs,
    PruneJournal,
    PurgeMemories,
    PurgeNotifications,
    RemoveWaits,
    TrimJournal,
)
from holdfast.store.rules import AddRule, RemoveRule
from holdfast.store.spending import CountOlder, ReplaceSpending

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.secrets.redactor import Redactor
    from holdfast.store.contract import Command


_NAMES: Final = ("journal", "agent", "session", "key", "kind", "source", "scope", "name", "by", "parent", "role")
"""Fields of commands that are names."""
COMMANDS_WITHOUT_CONTENT: Final[frozenset[type[Command[Any]]]] = frozenset(
    (
        *(Claim, CollectBlobs, DeleteMemory, Fork, ReadPosition, PurgeMemories, PurgeNotifications, Release),
        *(RemoveRule, Renew, ReplaceSpending, RevokeWaits, Ripen, SetTerms, SettleNotification, ShareAttachment),
        *(CountOlder, EmptyInputs, PruneJournal, RemoveWaits, TrimJournal),
    )
)
"""Commands that have only names and numbers."""


def redact_command(command: Any, redactor: Redactor) -> Any:  # noqa: ANN401  any command; answers one of the same type
    """The command without secrets; `SecretExposed` if a name in it holds one."""
    for name in _NAMES:
        said = getattr(command, name, None)
        if type(said) is str:
            redactor.check(name, said)
    kind = cast("type[Command[Any]]", type(command))
    if kind in COMMANDS_WITHOUT_CONTENT:
        return command
    cleaned = COMMAND_REDACTORS.get(kind)
    if cleaned is None:
        message = f"redaction of {kind.__name__} is not defined"
        raise InvariantBroken(message)
    return cleaned(command, redactor)


def _append(command: Append, redactor: Redactor) -> Append:
    pairs = [redact_record(*pair, redactor) for pair in zip(command.records, command.bodies, strict=True)]
    notices = tuple(redact_command(notice, redactor) for notice in command.notify)
    records, bodies = tuple(record for record, _ in pairs), [body for _, body in pairs]
    return replace(command, records=records, bodies=bodies, notify=notices)


def _accept(command: Accept | DeliverNotifications, redactor: Redactor) -> Accept | DeliverNotifications:
    if isinstance(command, Accept) and command.opening is not None:
        command = replace(command, opening=redact_command(command.opening, redactor))
    body = redactor.bytes(command.body, numbers=False)
    return command if body is command.body else replace(command, body=body, digest=input_digest(body))


def _open_journal(command: OpenJournal, redactor: Redactor) -> OpenJournal:
    if command.metadata is None:
        return command
    return replace(command, metadata=redactor.bytes(command.metadata, numbers=False))


def _notify(command: Notify, redactor: Redactor) -> Notify:
    return replace(command, title=redactor.text(command.title), body=redactor.text(command.body))


def _note_refusal(command: NoteRefusal, redactor: Redactor) -> NoteRefusal:
    return replace(command, message=redactor.text(command.message))


def _put_memory(command: PutMemory, redactor: Redactor) -> PutMemory:
    return replace(command, value=redactor.text(command.value))


def _put_blob(command: PutBlob, redactor: Redactor) -> PutBlob:
    body = redactor.bytes(command.body, numbers=False)
    return command if body is command.body else PutBlob(blob_digest(body), body)


def _put_attachment(command: PutAttachment, redactor: Redactor) -> PutAttachment:
    redactor.check("media type", command.media_type)
    whole = command.body if isinstance(command.body, bytes) else command.body.whole()
    body = redactor.bytes(whole, numbers=False)
    return command if body is whole else replace(command, digest=blob_digest(body), body=body)


def _open_wait(command: OpenWait, redactor: Redactor) -> OpenWait:
    return command if command.body is None else replace(command, body=redactor.bytes(command.body, numbers=False))


def _settle_wait(command: SettleWait, redactor: Redactor) -> SettleWait:
    if command.rule is not None:
        redact_command(command.rule, redactor)
    payload = command.payload
    return command if payload is None else replace(command, payload=redactor.bytes(payload, numbers=False))


def _settle_next(command: SettleNext, redactor: Redactor) -> SettleNext:
    return replace(command, payload=redactor.bytes(command.payload, numbers=False))


def _add_rule(command: AddRule, redactor: Redactor) -> AddRule:
    # A redacted rule would be another rule.
    redactor.check("rule", command.body)
    return command


def _quarantine(command: Quarantine, redactor: Redactor) -> Quarantine:
    return replace(command, reason=redactor.text(command.reason))


COMMAND_REDACTORS: Final[dict[type[Command[Any]], Callable[[Any, Redactor], Any]]] = {
    Accept: _accept,
    AddRule: _add_rule,
    Append: _append,
    DeliverNotifications: _accept,
    NoteRefusal: _note_refusal,
    Notify: _notify,
    OpenJournal: _open_journal,
    OpenWait: _open_wait,
    PutAttachment: _put_attachment,
    PutBlob: _put_blob,
    PutMemory: _put_memory,
    Quarantine: _quarantine,
    SettleNext: _settle_next,
    SettleWait: _settle_wait,
}
"""The redaction of each command with content."""
