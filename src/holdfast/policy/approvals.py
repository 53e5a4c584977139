"""Questions about tool calls, their answers, and the rules that people store with an approval. Pure.

A person approves the call as it will run: tool, definition, version or code, arguments with their defaults,
confinement, session and key. All of it is in one digest; a call that differs by one byte is another question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from holdfast.effects.canonical import digest
from holdfast.errors.caller import PolicyInvalid
from holdfast.policy.files import parse_rule
from holdfast.policy.rules import Policy, Rule, Subject, read_url

if TYPE_CHECKING:
    from collections.abc import Iterable


KIND: Final = "approval"
"""The kind of these waits in the store."""
MARK: Final = "/%approval-"
"""Separates the key of a call from the digest in the name of its wait."""
EXPIRES_MS: Final = 7 * 86_400_000
"""Time to answer a question unless its rule sets another: a week."""
_SHOWN: Final = 16


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as it will run, and why a person is asked about it."""

    session: str
    agent: str
    effect: str
    """The key of the call in its journal."""
    tool: str
    definition: str
    """The digest of the tool's definition."""
    arguments: dict[str, Any]
    """With the defaults of what the model left out."""
    sandbox: str | None = None
    rule: str = ""
    why: str = ""
    asked: int = 0
    each: bool = False
    """No stored rule answers this question."""
    implementation: str | None = None
    """The version of the tool, or the digest of its code; None in questions of releases that did not record it."""

    @property
    def digest(self) -> str:
        """The digest that an approval is for. Time and reason of the question are no part of it."""
        return self.digest_with(self.arguments)

    def digest_with(self, arguments: dict[str, Any]) -> str:
        """The digest of the same call with other arguments: another one, unless they are the same."""
        parts = [self.session, self.effect, self.agent, self.tool, self.definition, arguments, self.sandbox]
        return digest(KIND, parts if self.implementation is None else [*parts, self.implementation])

    @property
    def id(self) -> str:
        """The id that people use."""
        return f"a-{self.digest[:_SHOWN]}"

    @property
    def wait(self) -> str:
        """The name of its wait."""
        return wait_name(self.effect, self.digest)


def wait_name(effect: str, digest: str) -> str:
    """The name of the wait in which a call is asked about."""
    return f"{effect}{MARK}{digest[:_SHOWN]}"


class Approved(msgspec.Struct, frozen=True, tag="approved", omit_defaults=True):
    """A person approved the call with this digest. `arguments` are set if the person changed them."""

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
    """The question in the body of a wait; None if the body is none."""
    try:
        return _questions.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _decode_answer(payload: bytes | None) -> ApprovalAnswer:
    try:
        return _answers.decode(payload or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Denied("the answer could not be understood")


def read_answer(question: Question, payload: bytes | None) -> ApprovalAnswer:
    """The answer to a question. A payload that does not approve this very question is a denial."""
    answer = _decode_answer(payload)
    if isinstance(answer, Approved):
        arguments = question.arguments if answer.arguments is None else answer.arguments
        if answer.digest != question.digest_with(arguments):
            return Denied("the approval was given for another call")
    return answer


def is_approval_of(payload: bytes | None, digest: str) -> bool:
    """True if an answer approves the call with this digest."""
    answer = _decode_answer(payload)
    return isinstance(answer, Approved) and answer.digest == digest


def refusal_text(tool: str, answer: Denied) -> str:
    """The text that the model reads of a denial."""
    who = "A person" if answer.by is None else f"A person ({answer.by})"
    why = f": {answer.reason}" if answer.reason else "."
    return f"{who} did not allow this call of {tool}{why}"


def narrowest_rule(subject: Subject) -> str | None:
    """The rule that allows calls like this one, as JSON; None where no rule could tell them from others.

    A command is allowed by its words (and whatever follows them, so it must have two at least), a URL by its host,
    anything else by all of its arguments: never a tool as a whole.
    """
    name = f"{subject.family}.{subject.tool}" if subject.of_server else subject.tool
    table: dict[str, Any] = {"allow": name}
    given: Any = None if subject.command is None else subject.args.get(subject.command)
    if isinstance(given, list):
        if len(cast("list[Any]", given)) < 2:
            return None  # a program as a whole may do anything
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
    """The rule that was stored as JSON; raises `PolicyInvalid` for other text."""
    try:
        table = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PolicyInvalid(f"a stored rule can't be read: {error}") from None
    rule = parse_rule(cast("dict[str, Any]", table), "a stored rule", "/")
    if not isinstance(rule, Rule):
        raise PolicyInvalid("a stored rule says allow, ask or deny")
    return rule


def is_allowed_by_stored(bodies: Iterable[str], subject: Subject) -> bool:
    """True if one of the stored rules allows this call. A rule that can't be read allows nothing."""
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
