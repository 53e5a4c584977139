"""Rules and constraints: what each is, and whether it is about a call. They are made by the functions in `making`."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutine, iscoroutinefunction
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.errors.base import UsageError, excerpt
from holdfast.errors.caller import PolicyInvalid
from holdfast.policy.conditions import (
    NO,
    YES,
    Above,
    ArgumentTest,
    Below,
    Equals,
    Finding,
    Inside,
    Matches,
    OneOf,
    absolute_path,
    all_of,
    count_literal_characters,
    find_host,
    find_prefix,
    is_literal,
    matches_wildcards,
    parse_host_pattern,
    paths_in,
    real_path,
    why_outside,
)
from holdfast.records import InputTaint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.policy.conditions import HostPattern, Prefix, Real, Scalar, Test


Verdict: TypeAlias = Literal["allow", "ask", "deny"]
STRICTNESS: Final[dict[Verdict, int]] = {"allow": 0, "ask": 1, "deny": 2}
"""How strict each verdict is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One tool call as a policy sees it: the call as it will run, and what its tool says about itself."""

    tool: str
    args: Mapping[str, Any]
    """Plain JSON, with the defaults of what the model left out."""
    family: str | None = None
    """``files``, ``shell``, ...; ``mcp.SERVER`` for a tool of an MCP server."""
    read_only: bool = False
    untrusted: bool = False
    """Whether what it returns was written by strangers."""
    private: bool = False
    """Whether it reads what is not public."""
    external: bool | None = None
    """Whether something leaves through it; None where nobody said: then it does, unless it only reads."""
    paths: tuple[str, ...] = ()
    """The parameters that are paths."""
    command: str | None = None
    """The parameter that is a command."""
    url: str | None = None
    """The parameter that is a URL."""
    digest: str = ""
    """Of the definition of the tool."""
    base: str | None = None
    """The folder that relative paths begin at; None: that of this process."""

    @property
    def reaches_out(self) -> bool:
        """Whether something may leave through this call."""
        return not self.read_only if self.external is None else self.external

    @property
    def of_server(self) -> bool:
        """Whether an MCP server offers the tool, and so chose its name."""
        return self.family is not None and self.family.split(".")[0] == "mcp"


@dataclass(frozen=True, slots=True)
class Call:
    """What a predicate sees of a call. The arguments are a copy: changing them changes nothing."""

    tool: str
    args: dict[str, Any]
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Taint:
    """What a turn has taken in so far, and the first records with which it did."""

    untrusted_input: bool = False
    private_data: bool = False
    untrusted_by: str = field(default="", compare=False)
    private_by: str = field(default="", compare=False)

    @classmethod
    def of(cls, given: InputTaint) -> Taint:
        """The taint that an input or an answer brings."""
        return cls(bool(given.untrusted), bool(given.private), given.untrusted, given.private)

    @property
    def as_input(self) -> InputTaint:
        """The same for an input or an answer that tells of it."""
        return InputTaint(
            (self.untrusted_by or "an earlier record") if self.untrusted_input else "",
            (self.private_by or "an earlier record") if self.private_data else "",
        )

    def joined(self, other: Taint) -> Taint:
        """What was taken in by both. The records of the first are kept."""
        if not (other.untrusted_input or other.private_data):
            return self
        return Taint(
            self.untrusted_input or other.untrusted_input,
            self.private_data or other.private_data,
            self.untrusted_by if self.untrusted_input else other.untrusted_by,
            self.private_by if self.private_data else other.private_by,
        )

    def after(self, subject: Subject, by: str = "") -> Taint:
        """The taint of the turn once the result of this call, the record `by`, is in it. It never goes away."""
        return self.joined(Taint(subject.untrusted, subject.private, by, by))


CLEAN: Final = Taint()


class Decision(msgspec.Struct, frozen=True):
    """What a policy says about one call, and why."""

    verdict: Verdict
    rule: str
    """The rule that decided, with its number; or what stands in its place: ``default``, ``taint``."""
    why: str
    expires_ms: int | None = None
    """How long the question stays open, where it is one; None: without end."""
    tainted: bool = False
    """Whether a person must be asked because of what the turn has taken in, whatever rules say about the call. No
    permission that was given once and for all answers such a question."""


MAX_WHY: Final = 10_000
"""Longest words of a predicate that failed. They are cut for good after secrets were taken out of them."""
Predicate: TypeAlias = Callable[[Call], bool]
Example: TypeAlias = "str | tuple[str, ...] | Mapping[str, object]"
"""A command as words or as a shell string, a URL, or arguments: what the rule's one condition looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Allow, ask or deny the calls that it is about: those of its tools that all of its conditions hold for."""

    verdict: Verdict
    tools: Selector
    tests: tuple[ArgumentTest, ...] = ()
    predicate: Predicate | None = None
    argv: Prefix | None = None
    domains: tuple[HostPattern, ...] | None = None
    matches: tuple[Example, ...] = ()
    never: tuple[Example, ...] = ()
    name: str | None = None
    reason: str | None = None
    """Why it denies: for the model."""
    expires_ms: int | None = None

    def __str__(self) -> str:
        return self.name or self.written

    @property
    def written(self) -> str:
        """The rule in words."""
        return " ".join([self.verdict, self.tools.text, *self.conditions])

    @property
    def conditions(self) -> Iterator[str]:
        """Its conditions in words."""
        if self.argv is not None:
            yield "argv " + " ".join("|".join(choice) for choice in self.argv)
        if self.domains is not None:
            yield "domains " + ", ".join(map(str, self.domains))
        if self.tests:
            said = (f"{one.argument} {describe_test(test)}" for one in self.tests for test in one.tests)
            yield "when " + " and ".join(said)
        if self.predicate is not None:
            yield f"when {getattr(self.predicate, '__name__', type(self.predicate).__name__)}"

    def specificity(self, subject: Subject) -> int | None:
        """How closely it means the tool of a call; None where it is not about it."""
        if self.verdict == "allow" and not self.tools.permits(subject):
            return None
        return self.tools.specificity(subject)

    def find(self, subject: Subject, real: Real) -> Finding:
        """Whether its conditions hold for a call of one of its tools. The predicate is asked last, if at all."""
        named = not self.tools.everything
        found = all_of(
            (
                YES if self.argv is None else find_prefix(self.argv, subject, named=named),
                YES if self.domains is None else find_host(self.domains, subject, named=named),
                *(test.find(subject, real) for test in self.tests),
            )
        )
        if found.state == "no" or self.predicate is None:
            return found
        return all_of((found, _asked(self.predicate, subject)))


def _asked(predicate: Predicate, subject: Subject) -> Finding:
    try:
        # A copy, so that no predicate can change what runs.
        call = Call(subject.tool, copy.deepcopy(dict(subject.args)), subject.family)
        answer: object = predicate(call)
    except Exception as error:  # noqa: BLE001  it is code of others, and whatever it raises denies
        return Finding("failed", f"its predicate raised {type(error).__name__}: {str(error)[:MAX_WHY]}")
    if iscoroutine(answer):
        answer.close()  # it is never awaited
    if type(answer) is not bool:
        return Finding("failed", f"its predicate gave a {type(answer).__name__}, not True or False")
    return YES if answer else NO


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A constraint: the paths of a call must really lead into one of `roots`. It permits nothing by itself."""

    roots: tuple[str, ...]
    tools: Selector
    name: str | None = None

    def __str__(self) -> str:
        return self.name or self.written

    @property
    def written(self) -> str:
        """The constraint in words."""
        tools = "" if self.tools.everything else f" for {self.tools.text}"
        return f"within {', '.join(self.roots)}{tools}"

    def objection(self, subject: Subject, real: Real) -> str | None:
        """Why a call breaks it; None where it does not.

        A tool without paths is only denied where the constraint names it: then somebody believes that it is confined.
        """
        if self.tools.specificity(subject) is None:
            return None
        if not subject.paths:
            return None if self.tools.everything else "the tool does not say which of its arguments are paths"
        return next((why for name in subject.paths if (why := self._argument(name, subject, real))), None)

    def _argument(self, name: str, subject: Subject, real: Real) -> str | None:
        paths = paths_in(subject.args.get(name))
        if not paths:
            return f"the path {name!r} is missing"
        why = next((why for path in paths if (why := why_outside(path, self.roots, subject.base, real))), None)
        return None if why is None else f"the path {name!r} is outside of {', '.join(self.roots)}: {why}"


PolicyPart: TypeAlias = Rule | Within
"""What a policy is made of."""


def describe_test(test: Test) -> str:
    """A condition on an argument, in words."""
    match test:
        case Equals(value):
            return f"equals {value!r}"
        case OneOf(values):
            return f"one of {', '.join(map(repr, values))}"
        case Above(limit):
            return f"above {limit:g}" if isinstance(limit, float) else f"above {limit}"
        case Below(limit):
            return f"below {limit:g}" if isinstance(limit, float) else f"below {limit}"
        case Matches(pattern):
            return f"matches {pattern}"
        case Inside(roots):
            return f"within {', '.join(roots)}"


EXACT: Final = 1_000
"""How specific a rule is that names the tool itself: more than any pattern can be."""
_LONGEST: Final = 200
_WORD: Final = re.compile(r"[A-Za-z0-9_*?-]+")
_FORMS: Final = (
    "a tool, a pattern such as 'read*', a family such as 'files', 'files.read*', 'mcp.SERVER' or 'mcp.SERVER.TOOL'"
)


@dataclass(frozen=True, slots=True)
class Selector:
    """What was written in place of a tool.

    Without `family`, `name` is the name of a tool or a pattern of names; a word without wildcards may also be a family.
    """

    text: str
    family: str | None
    name: str

    @property
    def everything(self) -> bool:
        """Whether it is about all tools alike."""
        return not self.text.strip("*")

    def specificity(self, subject: Subject) -> int | None:
        """How closely it means this tool: `EXACT`, or the letters it gives away; None where it does not mean it."""
        if self.family is None:
            return self._of_word(subject)
        if (
            subject.family is None
            or not matches_wildcards(subject.family, self.family)
            or not matches_wildcards(subject.tool, self.name)
        ):
            return None
        return (
            EXACT
            if is_literal(self.name)
            else count_literal_characters(self.family) + count_literal_characters(self.name)
        )

    def _of_word(self, subject: Subject) -> int | None:
        if matches_wildcards(subject.tool, self.name):
            return EXACT if is_literal(self.name) else count_literal_characters(self.name)
        return count_literal_characters(self.name) if self.name == subject.family else None

    def permits(self, subject: Subject) -> bool:
        """Whether a permission for what is written here may reach this tool.

        An MCP server chooses the names of its tools. It must not get the permission of another tool by taking its name.
        """
        named = self.family is not None and self.family.startswith("mcp.")
        return named or self.everything or not subject.of_server


def parse_selector(text: object, key: str = "tool") -> Selector:
    """The tools that `text` means, or `PolicyInvalid`."""
    if type(text) is not str or not 0 < len(text) <= _LONGEST:
        raise PolicyInvalid(f"{excerpt(text)} names no tools; write {_FORMS}", key=key)
    words = text.split(".")
    if not all(_WORD.fullmatch(word) for word in words):
        raise PolicyInvalid(f"{excerpt(text)} names no tools; write {_FORMS}", key=key)
    match words:
        case ["mcp"]:
            return Selector(text, "mcp.*", "*")
        case ["mcp", server]:
            return Selector(text, f"mcp.{server}", "*")
        case ["mcp", server, name]:
            return Selector(text, f"mcp.{server}", name)
        case [name]:
            return Selector(text, None, name)
        case [family, name]:
            return Selector(text, family, name)
        case _:
            raise PolicyInvalid(f"{excerpt(text)} has too many dots; write {_FORMS}", key=key)


def milliseconds(span: timedelta | float) -> int:
    """A span of time as it is stored; seconds where it is a number."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if type(seconds) not in (int, float) or not 0 < seconds <= 10 * 365 * 86_400:
        raise InvalidArgument("time", span, "a timedelta or a number of seconds, above zero and below ten years")
    return max(1, round(seconds * 1000))


When: TypeAlias = "Callable[[Call], bool] | Mapping[str, Mapping[str, Any]]"
"""A predicate on the call, or conditions on its arguments such as ``{"cents": {"above": 5000}}``."""
Argv: TypeAlias = "Sequence[str | Sequence[str]]"
"""The words that a command begins with; a list in place of a word means any of these."""
Examples: TypeAlias = "Sequence[str | Sequence[str] | Mapping[str, Any]]"
MOST: Final = 200
"""Words of a command, hosts, folders, conditions or examples of one rule."""
LONGEST: Final = 1_000
"""Characters of one text in a rule."""
_EXAMPLES: Final = "examples need a rule with exactly one of argv, domains and when"


def allow(
    tool: str,
    *,
    when: When | None = None,
    argv: Argv | None = None,
    domains: Sequence[str] | None = None,
    matches: Examples = (),
    never: Examples = (),
    name: str | None = None,
) -> Rule:
    """A rule that allows calls.

    `tool` is a tool, a pattern such as ``read*``, a family such as ``files``, ``files.read*``, ``mcp.SERVER`` or
    ``mcp.SERVER.TOOL``. The conditions must all hold: `when` is a function of the call or conditions on its arguments,
    `argv` the words that its command begins with, `domains` the hosts that its URL may lead to. `matches` and `never`
    are examples that are tried at once: a rule that says anything else about them is an error.
    """
    return _rule("allow", tool, when, argv, domains, matches, never, name)


def ask(
    tool: str,
    *,
    when: When | None = None,
    argv: Argv | None = None,
    domains: Sequence[str] | None = None,
    matches: Examples = (),
    never: Examples = (),
    name: str | None = None,
    expires: timedelta | float | None = None,
) -> Rule:
    """A rule that asks a person. `expires` is how long the question stays open; then the answer is no. See `allow`."""
    return _rule("ask", tool, when, argv, domains, matches, never, name, expires_ms=_span(expires))


def deny(
    tool: str,
    *,
    when: When | None = None,
    argv: Argv | None = None,
    domains: Sequence[str] | None = None,
    matches: Examples = (),
    never: Examples = (),
    name: str | None = None,
    reason: str | None = None,
) -> Rule:
    """A rule that denies calls. `reason` tells the model why. See `allow`."""
    said = None if reason is None else _text("reason", reason)
    return _rule("deny", tool, when, argv, domains, matches, never, name, reason=said)


def within(*roots: str | PurePath, tools: str = "*", name: str | None = None) -> Within:
    """A constraint: paths must really lead into one of these folders, links followed. It permits nothing by itself.

    It holds for all tools that say which of their arguments are paths, or for those of `tools`.
    """
    label = None if name is None else _text("name", name)
    return Within(roots=parse_roots("within", list(roots)), tools=parse_selector(tools, "tools"), name=label)


def _rule(
    verdict: Verdict,
    tool: str,
    when: When | None,
    argv: Argv | None,
    domains: Sequence[str] | None,
    matches: Examples,
    never: Examples,
    name: str | None,
    *,
    reason: str | None = None,
    expires_ms: int | None = None,
) -> Rule:
    predicate, tests = _conditions(when)
    made = Rule(
        verdict=verdict,
        tools=parse_selector(tool),
        tests=tests,
        predicate=predicate,
        argv=None if argv is None else _prefix(argv),
        domains=None if domains is None else _hosts(domains),
        matches=_examples("matches", matches),
        never=_examples("never", never),
        name=None if name is None else _text("name", name),
        reason=reason,
        expires_ms=expires_ms,
    )
    _try(made)
    return made


def _text(key: str, value: object) -> str:
    if type(value) is not str or not 0 < len(value) <= LONGEST:
        raise PolicyInvalid(f"{excerpt(value)} is not text of 1 to {LONGEST:,} characters", key=key)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PolicyInvalid(f"{excerpt(value)} holds a lone surrogate", key=key) from None
    return value


def _list(key: str, value: object) -> list[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise PolicyInvalid(f"a list is wanted, not {excerpt(value)}", key=key)
    found = list(cast("Sequence[object]", value))
    if not 0 < len(found) <= MOST:
        raise PolicyInvalid(f"it has {len(found):,} entries; 1 to {MOST} can be meant", key=key)
    return found


def _prefix(argv: object) -> Prefix:
    return tuple(_choice(word) for word in _list("argv", argv))


def _choice(word: object) -> tuple[str, ...]:
    return (_text("argv", word),) if isinstance(word, str) else tuple(_text("argv", one) for one in _list("argv", word))


def _hosts(domains: object) -> tuple[HostPattern, ...]:
    return tuple(parse_host_pattern(_text("domains", text)) for text in _list("domains", domains))


def _span(expires: timedelta | float | None) -> int | None:
    try:
        return None if expires is None else milliseconds(expires)
    except UsageError:
        wanted = "a timedelta or a number of seconds, above zero and below ten years"
        raise PolicyInvalid(f"{wanted} is wanted, not {excerpt(expires)}", key="expires") from None


def parse_roots(key: str, roots: object) -> tuple[str, ...]:
    """Folders, as absolute paths."""
    listed = _list(key, roots)
    found = [_text(key, str(cast("object", root)) if isinstance(root, PurePath) else root) for root in listed]
    if any("\0" in text or text.startswith("~") for text in found):
        raise PolicyInvalid("a folder is a path from this folder or from the top; '~' is not expanded", key=key)
    return tuple(absolute_path(text) for text in found)


def _conditions(when: object) -> tuple[Predicate | None, tuple[ArgumentTest, ...]]:
    if when is None:
        return None, ()
    if isinstance(when, Mapping):
        given = cast("Mapping[object, object]", when)
        if not 0 < len(given) <= MOST:
            raise PolicyInvalid(f"it has {len(given):,} conditions; 1 to {MOST} can be meant", key="when")
        return None, tuple(_argument(argument, asked) for argument, asked in given.items())
    if not callable(when):
        raise PolicyInvalid(f"a function or conditions on arguments are wanted, not {excerpt(when)}", key="when")
    if iscoroutinefunction(when):
        raise PolicyInvalid("a predicate is a plain function: it decides from the call alone", key="when")
    return cast("Predicate", when), ()


def _argument(argument: object, asked: object) -> ArgumentTest:
    name = _text("when", argument)
    key = f"when.{name}"
    if not isinstance(asked, Mapping) or not asked:
        shown = excerpt(cast("object", asked))
        raise PolicyInvalid(f'conditions such as {{"above": 5000}} are wanted, not {shown}', key=key)
    tests = (_test(key, word, value) for word, value in cast("Mapping[object, object]", asked).items())
    return ArgumentTest(name, tuple(tests))


def _test(key: str, word: object, value: object) -> Test:
    match word:
        case "equals":
            return Equals(_scalar(f"{key}.equals", value))
        case "one_of":
            return OneOf(tuple(_scalar(f"{key}.one_of", one) for one in _list(f"{key}.one_of", value)))
        case "above":
            return Above(_number(f"{key}.above", value))
        case "below":
            return Below(_number(f"{key}.below", value))
        case "matches":
            return Matches(_text(f"{key}.matches", value))
        case "within":
            return Inside(parse_roots(f"{key}.within", [value] if isinstance(value, str | PurePath) else value))
        case _:
            known = "equals, one_of, above, below, matches, within"
            raise PolicyInvalid(f"there is no condition {excerpt(word)}; there are {known}", key=key)


def _scalar(key: str, value: object) -> Scalar:
    if type(value) is str:
        return value if not value else _text(key, value)
    return value if type(value) is bool else _number(key, value)


def _number(key: str, value: object) -> float:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return cast("float", value)
    raise PolicyInvalid(f"{excerpt(value)} is not a number that can be compared", key=key)


def _examples(key: str, given: object) -> tuple[Example, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise PolicyInvalid(f"a list of examples is wanted, not {excerpt(given)}", key=key)
    return tuple(_example(key, one) for one in _list(key, given)) if given else ()  # pyright: ignore[reportUnknownArgumentType]  # of anything


def _example(key: str, one: object) -> Example:
    if isinstance(one, str):
        return one
    if isinstance(one, Mapping):
        return dict(cast("Mapping[str, object]", one))
    return tuple(_text(key, word) for word in _list(key, one))


def _try(rule: Rule) -> None:
    """Raise `PolicyInvalid` for the first example about which the rule says the opposite."""
    for key, examples, wanted in (("matches", rule.matches, True), ("never", rule.never, False)):
        for example in examples:
            subject = _pretended(rule, key, example)
            found = rule.find(subject, real_path)
            if found.state == "failed":
                raise PolicyInvalid(f"{excerpt(example)}: {found.why}", key=key)
            covered = found.state == "yes" or (found.state == "unclear" and rule.verdict != "allow")
            if covered is not wanted:
                what = "is not covered by the rule" if wanted else "is covered by the rule"
                raise PolicyInvalid(f"{excerpt(example)} {what}{f' ({found.why})' if found.why else ''}", key=key)


def _pretended(rule: Rule, key: str, example: Example) -> Subject:
    """A call for an example: what its arguments are called is known only to real tools."""
    conditions = [rule.argv is not None, rule.domains is not None, bool(rule.tests) or rule.predicate is not None]
    if sum(conditions) != 1:
        raise PolicyInvalid(_EXAMPLES, key=key)
    if rule.argv is not None and not isinstance(example, Mapping):
        return Subject(tool="example", args={"command": example}, command="command")
    if rule.domains is not None and isinstance(example, str):
        return Subject(tool="example", args={"url": example}, url="url")
    if (rule.tests or rule.predicate is not None) and isinstance(example, Mapping):
        return Subject(tool="example", args=example)
    wanted = (
        "a command" if rule.argv is not None else "a URL" if rule.domains is not None else "arguments, as a mapping"
    )
    raise PolicyInvalid(f"{excerpt(example)} is no example for this rule; {wanted} is wanted", key=key)
