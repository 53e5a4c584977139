"""Approval questions about tool calls, their answers, and the rules stored with an approval. Pure.

A person approves the call as it will run: tool, definition, version or code, arguments with defaults, confinement,
session and key. One digest covers all of it, so a call that differs by one byte is another question.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias, cast

import msgspec

from holdfast.effects.canonical import digest
from holdfast.errors.caller import PolicyInvalid
from holdfast.policy.files import parse_rule
from holdfast.policy.rules import Policy, Rule, Subject, read_url

KIND: Final = "approval"
"""The kind of approval waits in the store."""
MARK: Final = "/%approval-"
"""Separates the key of a call from the digest in the name of its wait."""
EXPIRES_MS: Final = 7 * 86_400_000
"""Default time to answer a question: a week."""
_SHOWN: Final = 16


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as it will run, and the reason to ask a person."""

    session: str
    agent: str
    effect: str
    """The key of the call in its journal."""
    tool: str
    definition: str
    """The digest of the tool's definition."""
    arguments: dict[str, Any]
    """With the defaults of omitted arguments."""
    sandbox: str | None = None
    rule: str = ""
    why: str = ""
    asked: int = 0
    each: bool = False
    """No stored rule answers this question."""
    implementation: str | None = None
    """The version of the tool, or the digest of its code; None in questions of releases that did not record it."""
    host_call: str | None = None
    """The id of the call, if the host made it outside a turn."""

    @property
    def digest(self) -> str:
        """The digest that an approval names. It does not cover time and reason of the question."""
        return self.digest_with(self.arguments)

    def digest_with(self, arguments: dict[str, Any]) -> str:
        """The digest of the same call with other arguments."""
        parts: list[Any] = [self.session, self.effect, self.agent, self.tool, self.definition, arguments, self.sandbox]
        parts += [part for part in (self.implementation, self.host_call) if part is not None]
        return digest(KIND, parts)

    @property
    def id(self) -> str:
        """The id that people type."""
        return f"a-{self.digest[:_SHOWN]}"

    @property
    def wait(self) -> str:
        """The name of the wait for the answer."""
        return f"{self.effect}{MARK}{self.digest[:_SHOWN]}"


class Approved(msgspec.Struct, frozen=True, tag="approved", omit_defaults=True):
    """A person approved the call with this digest; `arguments` are set if the person changed them."""

    digest: str
    by: str | None = None
    arguments: dict[str, Any] | None = None


class Denied(msgspec.Struct, frozen=True, tag="denied", omit_defaults=True):
    """A person denied the call."""

    reason: str = ""
    by: str | None = None


ApprovalAnswer: TypeAlias = Approved | Denied
_answers: Final = msgspec.json.Decoder(ApprovalAnswer)
_questions: Final = msgspec.json.Decoder(Question)


def read_question(body: bytes) -> Question | None:
    """The question in the body of a wait; None if the body holds none."""
    try:
        return _questions.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def decode_answer(payload: bytes | None) -> ApprovalAnswer:
    """The answer in the payload of a wait; an unreadable one is a denial."""
    try:
        return _answers.decode(payload or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Denied("the answer could not be understood")


def read_answer(question: Question, payload: bytes | None) -> ApprovalAnswer:
    """The answer to a question. A payload that does not approve this question by its digest is a denial."""
    answer = decode_answer(payload)
    if isinstance(answer, Approved):
        arguments = question.arguments if answer.arguments is None else answer.arguments
        if answer.digest != question.digest_with(arguments):
            return Denied("the approval was given for another call")
    return answer


def is_approval_of(payload: bytes | None, digest: str) -> bool:
    """True if an answer approves the call with this digest."""
    answer = decode_answer(payload)
    return isinstance(answer, Approved) and answer.digest == digest


def refusal_text(tool: str, answer: Denied) -> str:
    """The text that tells the model of a denial."""
    who = "A person" if answer.by is None else f"A person ({answer.by})"
    why = f": {answer.reason}" if answer.reason else "."
    return f"{who} did not allow this call of {tool}{why}"


def narrowest_rule(subject: Subject) -> str | None:
    """The narrowest rule that allows calls like this one, as JSON; None if no rule can single them out.

    It matches a command by its words (two at least; more may follow), a URL by its host, any other call by all of its
    arguments. It never allows a tool as a whole.
    """
    name = f"{subject.family}.{subject.tool}" if subject.of_server else subject.tool
    table: dict[str, Any] = {"allow": name}
    given: Any = None if subject.command is None else subject.args.get(subject.command)
    if isinstance(given, list):
        if len(cast("list[Any]", given)) < 2:
            return None  # a program may do anything
        table["argv"] = given
    elif subject.url is not None:
        url = read_url(str(subject.args.get(subject.url)))
        if isinstance(url, str):
            return None
        table["domains"] = [url.host]
    else:
        if not subject.args or not all(isinstance(value, str | int | float) for value in subject.args.values()):
            return None
        table["when"] = {name: {"equals": value} for name, value in subject.args.items()}
    body = msgspec.json.encode(table).decode()
    try:
        return body if _allows(parse_stored_rule(body), subject) else None
    except PolicyInvalid:
        return None


def parse_stored_rule(body: str) -> Rule:
    """Parse a stored rule; `PolicyInvalid` if the text is none."""
    try:
        table = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PolicyInvalid(f"a stored rule can't be read: {error}") from None
    rule = parse_rule(cast("dict[str, Any]", table), "a stored rule", "/")
    if not isinstance(rule, Rule):
        raise PolicyInvalid("a stored rule says allow, ask or deny")
    return rule


def is_allowed_by_stored(bodies: Iterable[str], subject: Subject) -> bool:
    """True if a stored rule allows this call. An unreadable rule allows nothing."""
    for body in bodies:
        try:
            rule = parse_stored_rule(body)
        except PolicyInvalid:
            continue
        if _allows(rule, subject):
            return True
    return False


def _allows(rule: Rule, subject: Subject) -> bool:
    return rule.verdict == "allow" and Policy((rule,), taint=False).decide(subject).verdict == "allow"
