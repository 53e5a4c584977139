"""Redaction of commands: no secret reaches a store, whoever calls it.

Contents are redacted. Names (ids, keys, scopes) must stay as they are to be found again, so a name with a secret is
refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from holdfast.errors import InvariantBroken
from holdfast.secrets.redactor import redact_record
from holdfast.store import (
    attachments,
    inbox,
    memories,
    notifications,
    retention,
    rules,
    spending,
    transaction,
    waits,
)
from holdfast.store.checksum import blob_digest, input_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.secrets.redactor import Redactor
    from holdfast.store.contract import Command


_NAMES: Final = ("journal", "agent", "session", "key", "kind", "source", "scope", "name", "by", "parent", "role")
"""Fields of commands that are names."""
COMMANDS_WITHOUT_CONTENT: Final[frozenset[type[Command[Any]]]] = frozenset(
    (
        *(transaction.Claim, transaction.Fork, transaction.ReadPosition, transaction.Release, transaction.Renew),
        *(waits.RevokeWaits, notifications.Ripen, notifications.SettleNotification, memories.DeleteMemory),
        *(rules.RemoveRule, attachments.ShareAttachment, inbox.SetTerms, spending.CountOlder),
        *(spending.ReplaceSpending, retention.CollectBlobs, retention.EmptyInputs, retention.PruneJournal),
        *(retention.PurgeMemories, retention.PurgeNotifications, retention.RemoveWaits, retention.TrimJournal),
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
    redact = COMMAND_REDACTORS.get(kind)
    if redact is None:
        message = f"redaction of {kind.__name__} is not defined"
        raise InvariantBroken(message)
    return redact(command, redactor)


def _redact_fields(*fields: str) -> Callable[[Any, Redactor], Any]:
    """A redactor of commands whose content is in these fields, texts or bytes."""

    def redact(command: Any, redactor: Redactor) -> Any:  # noqa: ANN401
        cleaned: dict[str, Any] = {}
        for field in fields:
            content = getattr(command, field)
            if content is not None:
                is_text = isinstance(content, str)
                cleaned[field] = redactor.text(content) if is_text else redactor.bytes(content, numbers=False)
        return replace(command, **cleaned)

    return redact


def _redact_append(command: transaction.Append, redactor: Redactor) -> transaction.Append:
    pairs = [redact_record(*pair, redactor) for pair in zip(command.records, command.bodies, strict=True)]
    notices = tuple(redact_command(notice, redactor) for notice in command.notify)
    records, bodies = tuple(record for record, _ in pairs), [body for _, body in pairs]
    return replace(command, records=records, bodies=bodies, notify=notices)


def _redact_input(command: Any, redactor: Redactor) -> Any:  # noqa: ANN401  `Accept` or `DeliverNotifications`
    if isinstance(command, inbox.Accept) and command.opening is not None:
        command = replace(command, opening=redact_command(command.opening, redactor))
    body = redactor.bytes(command.body, numbers=False)
    return command if body is command.body else replace(command, body=body, digest=input_digest(body))


def _redact_blob(command: transaction.PutBlob, redactor: Redactor) -> transaction.PutBlob:
    body = redactor.bytes(command.body, numbers=False)
    return command if body is command.body else transaction.PutBlob(blob_digest(body), body)


def _redact_attachment(command: attachments.PutAttachment, redactor: Redactor) -> attachments.PutAttachment:
    redactor.check("media type", command.media_type)
    whole = command.body if isinstance(command.body, bytes) else command.body.whole()
    body = redactor.bytes(whole, numbers=False)
    return command if body is whole else replace(command, digest=blob_digest(body), body=body)


def _redact_settlement(command: waits.SettleWait, redactor: Redactor) -> waits.SettleWait:
    if command.rule is not None:
        redact_command(command.rule, redactor)
    return _redact_fields("payload")(command, redactor)


def _check_rule(command: rules.AddRule, redactor: Redactor) -> rules.AddRule:
    # A redacted rule would be another rule.
    redactor.check("rule", command.body)
    return command


COMMAND_REDACTORS: Final[dict[type[Command[Any]], Callable[[Any, Redactor], Any]]] = {
    inbox.Accept: _redact_input,
    rules.AddRule: _check_rule,
    transaction.Append: _redact_append,
    notifications.DeliverNotifications: _redact_input,
    inbox.NoteRefusal: _redact_fields("message"),
    notifications.Notify: _redact_fields("title", "body"),
    transaction.OpenJournal: _redact_fields("metadata"),
    waits.OpenWait: _redact_fields("body"),
    attachments.PutAttachment: _redact_attachment,
    transaction.PutBlob: _redact_blob,
    memories.PutMemory: _redact_fields("value"),
    transaction.Quarantine: _redact_fields("reason"),
    waits.SettleNext: _redact_fields("payload"),
    waits.SettleWait: _redact_settlement,
}
"""The redaction of each command with content."""
