"""Rules and constraints, policies, and their decisions about calls. Pure, except `real_path`.

A policy decides in this order:

1. The closest rules for the tool come first: a rule that names the tool, then patterns and families with more letters
   before those with fewer, then ``*``.
2. Among equally close rules the strictest that holds decides: deny, then ask, then allow. If none holds, the next
   closest follow; if none is left, the call is denied. Without any rule, calls that only read are allowed.
3. `within` and taint come last. They can only make the decision stricter.

A deny is never overridden: where a deny rule holds, a predicate fails or a constraint is broken, adding allow and ask
rules that match the tool no more closely than that rule never lifts the deny, in any order; for a constraint, no rule
at all does.

A condition holds, fails, or is unclear: a missing argument or one of another kind, a command that is one shell string,
an ambiguous URL. An unclear condition counts against the call: no permission covers the call, every refusal does.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from inspect import iscoroutine, iscoroutinefunction
from operator import itemgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

from holdfast.errors import InvalidArgument, PolicyInvalid, PolicyMissing, UsageError, excerpt
from holdfast.policy.paths import Real, absolute_path, is_inside, path_problem, paths_in, real_path, why_outside
from holdfast.records import InputTaint

if TYPE_CHECKING:
    import os

    from holdfast.toolkits.web.urls import HostRule, Url


Verdict: TypeAlias = Literal["allow", "ask", "deny"]
STRICTNESS: Final[dict[Verdict, int]] = {"allow": 0, "ask": 1, "deny": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The things that calls of a tool touch, for policy rules about paths, commands and addresses, and for taint.

    `paths`, `command` and `url` are names of parameters.
    """

    family: str | None = None
    """A name for a group of tools in policy rules: ``files``, ``shell``, ...; ``mcp.SERVER`` for an MCP server."""
    private: bool = False
    """Its results are private data."""
    external: bool | None = None
    """The tool reaches outside, where others may read its requests or be affected. None: unless it is `read_only`."""
    paths: tuple[str, ...] = ()
    base: str | None = None
    """The folder of relative paths; None for the current directory."""
    command: str | None = None
    url: str | None = None
    sandbox: str | None = None
    """Its confinement in one line: part of an approval."""
    workspaces: tuple[str, ...] = ()
    """Real paths of the folders in which calls read or write. A runtime refuses a tool that can reach its store."""
    hides_store: bool = False
    """Calls can't reach the folder ``.holdfast`` at the top of a workspace, so the store may be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Reach):
    """One tool call as a policy sees it: the call as it will run, and the declarations of its tool."""

    tool: str
    args: Mapping[str, Any]
    """Plain JSON, with the defaults of omitted arguments."""
    read_only: bool = False
    untrusted: bool = False
    """Its results are untrusted text."""
    digest: str = ""
    """The digest of the tool's definition."""
    approval: bool = False
    """Its toolset makes a person approve each call that the policy allows."""

    @property
    def reaches_out(self) -> bool:
        return not self.read_only if self.external is None else self.external

    @property
    def of_server(self) -> bool:
        """An MCP server offers the tool, and chose its name."""
        return self.family is not None and self.family.split(".")[0] == "mcp"


class Call(msgspec.Struct, frozen=True):
    """A call as a predicate sees it. `arguments` is a copy."""

    tool: str
    args: dict[str, Any]
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Taint:
    """The taint of a turn that has read untrusted input or private data; `..._by` is the first such record."""

    untrusted_input: bool = False
    private_data: bool = False
    untrusted_by: str = field(default="", compare=False)
    private_by: str = field(default="", compare=False)

    @classmethod
    def of(cls, given: InputTaint) -> Taint:
        """The taint of an input or an answer."""
        return cls(bool(given.untrusted), bool(given.private), given.untrusted, given.private)

    @property
    def as_input(self) -> InputTaint:
        """The same taint, as part of an input or an answer."""
        return InputTaint(
            (self.untrusted_by or "an earlier record") if self.untrusted_input else "",
            (self.private_by or "an earlier record") if self.private_data else "",
        )

    def joined(self, other: Taint) -> Taint:
        """The taint of both, with the records of the first."""
        if not (other.untrusted_input or other.private_data):
            return self
        return Taint(
            self.untrusted_input or other.untrusted_input,
            self.private_data or other.private_data,
            self.untrusted_by if self.untrusted_input else other.untrusted_by,
            self.private_by if self.private_data else other.private_by,
        )

    def after(self, subject: Subject, by: str = "") -> Taint:
        """The taint of the turn with the result of this call, the record `by`. Taint never goes away."""
        return self.joined(Taint(subject.untrusted, subject.private, by, by))


CLEAN: Final = Taint()


class Decision(msgspec.Struct, frozen=True):
    """The decision of a policy about one call, and the reason."""

    verdict: Verdict
    rule: str
    """The deciding rule with its number; or ``default``, ``taint``, ``toolset``, ``hook``."""
    why: str
    expires_ms: int | None = None
    """Time to answer the question; None for the default."""
    tainted: bool = False
    """Taint requires a person even if a rule allows the call. No stored rule answers such a question."""


# ---- conditions ----


_WANTED: Final = "write one such as 'example.com', or '*.example.com' for all below it, without a scheme or a port"
# The user part of a URL says nothing about the host. Drop only what every reader takes for a user; refuse what is odd
# after that.
_USER: Final = re.compile(r"\A(https?://)[\w.~!$&'()*+,;=:%-]*@", re.ASCII | re.IGNORECASE)


def read_url(url: str) -> Url | str:
    """Parse a URL, with its host in canonical form; a text is the reason why it can't be read."""
    from holdfast.toolkits.web.urls import UrlInvalid, parse_url

    try:
        return parse_url(_USER.sub(r"\1", url.strip(" \t\r\n")))
    except UrlInvalid as error:
        return error.reason[:200]


def parse_host_rule(text: str) -> HostRule:
    """Parse a rule for hosts; `PolicyInvalid` if it is none."""
    from holdfast.toolkits.web.urls import HostRule, parse_host, parse_ipv4

    below = text.startswith("*.")
    try:
        name = parse_host(text[2:] if below else text)
    except UsageError:
        raise PolicyInvalid(f"{excerpt(text)} is no host; {_WANTED}", key="domains") from None
    if below and (":" in name or parse_ipv4(name) is not None):
        raise PolicyInvalid(f"{excerpt(text)}: nothing is below an address; {_WANTED}", key="domains")
    return HostRule(name, below)


def matches_wildcards(text: str, pattern: str) -> bool:
    """True if all of `text` fits a pattern with ``*`` and ``?``; brackets are plain characters."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def _count_letters(pattern: str) -> int:
    return len(pattern) - pattern.count("*") - pattern.count("?")


def _is_literal(pattern: str) -> bool:
    return "*" not in pattern and "?" not in pattern


Scalar: TypeAlias = str | int | float | bool
Word: TypeAlias = Literal["equals", "one_of", "above", "below", "matches", "within"]
State: TypeAlias = Literal["yes", "unclear", "failed", "no"]
_WEIGHTS: Final[dict[State, int]] = {"yes": 0, "unclear": 1, "failed": 2, "no": 3}


class Finding(msgspec.Struct, frozen=True):
    """The result of a condition for a call, and the reason if it is unclear or failed."""

    state: State
    why: str = ""


YES: Final = Finding("yes")
NO: Final = Finding("no")


def all_of(findings: Iterable[Finding]) -> Finding:
    """Combine findings: the first "no" counts, else the first unclear one."""
    return max(findings, key=lambda finding: _WEIGHTS[finding.state], default=YES)


def _unclear(why: str) -> Finding:
    return Finding("unclear", why)


def _holds(answer: bool) -> Finding:
    return YES if answer else NO


def _kind(value: object) -> str | None:
    """The JSON kind of a scalar; None for other values and for NaN."""
    if isinstance(value, bool):  # before numbers: True is not 1 in JSON
        return "true or false"
    if isinstance(value, str):
        return "text"
    return "a number" if isinstance(value, int | float) and value == value else None  # noqa: PLR0124  NaN


class Condition(msgspec.Struct, frozen=True):
    """A condition on one argument. `value` is a tuple for ``one_of`` and ``within``, whose values are folders."""

    argument: str
    word: Word
    value: Any

    def __str__(self) -> str:
        match self.word:
            case "equals":
                said = repr(self.value)
            case "one_of":
                said = ", ".join(map(repr, self.value))
            case "within":
                said = ", ".join(self.value)
            case _:
                said = f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.argument} {self.word.replace('_', ' ')} {said}"

    def find(self, subject: Subject, real: Real) -> Finding:
        value: Any = subject.args.get(self.argument)
        if value is None:
            return _unclear(f"the argument {self.argument!r} is missing")
        match self.word:
            case "above" | "below":
                if _kind(value) != "a number":
                    return self._odd("a number")
                return _holds(value > self.value if self.word == "above" else value < self.value)
            case "matches":
                return _holds(matches_wildcards(value, self.value)) if isinstance(value, str) else self._odd("text")
            case "within":
                return self._find_paths(value, subject.base, real)
            case "equals" | "one_of":
                # A value of another kind than the compared ones, such as a list of them, is unclear.
                wanted: tuple[Scalar, ...] = (self.value,) if self.word == "equals" else self.value
                kinds = dict.fromkeys(_kind(one) or "" for one in wanted)
                kind = _kind(value)
                if kind not in kinds:
                    return self._odd(" or ".join(kinds))
                return _holds(any(kind == _kind(one) and value == one for one in wanted))

    def _find_paths(self, value: object, base: str | None, real: Real) -> Finding:
        """Yes if all paths are inside, no if all are outside; unclear if they differ or one is unresolvable."""
        paths = paths_in(value)
        if not paths:
            return self._odd("a path")
        try:
            inside = {is_inside(path, self.value, base, real) for path in paths}
        except (OSError, ValueError) as error:
            return _unclear(f"a path of the argument {self.argument!r} can't be resolved ({path_problem(error)})")
        if len(inside) > 1:
            folders = ", ".join(self.value)
            return _unclear(f"some paths of the argument {self.argument!r} are within {folders}, others not")
        return _holds(inside.pop())

    def _odd(self, wanted: str) -> Finding:
        return _unclear(f"the argument {self.argument!r} is not {wanted}")


Prefix: TypeAlias = tuple[tuple[str, ...], ...]
"""The first words of a command; each may have alternatives."""


def find_prefix(prefix: Prefix, subject: Subject, *, named: bool) -> Finding:
    """Check that the command of a call begins with these words.

    Only a list of words has a beginning: a shell string may do anything after it. A rule for all tools skips a tool
    without a command; a rule that `named` the tool finds it unclear.
    """
    if subject.command is None:
        return _unclear("the tool does not say which argument is its command") if named else NO
    value: object = subject.args.get(subject.command)
    if isinstance(value, str):
        return _unclear("the command is one shell string, which can do anything; only a list of words can be matched")
    words = cast("list[object]", list(value)) if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownArgumentType]  # of anything
    if not words or not all(isinstance(word, str) for word in words):
        return _unclear("the command is not a list of words")
    return _holds(
        len(words) >= len(prefix) and all(word in choice for word, choice in zip(words, prefix, strict=False))
    )


def find_host(domains: tuple[HostRule, ...], subject: Subject, *, named: bool) -> Finding:
    """Check that the URL of a call leads to one of these hosts."""
    if subject.url is None:
        return _unclear("the tool does not say which argument is its URL") if named else NO
    value: object = subject.args.get(subject.url)
    if not isinstance(value, str):
        return _unclear(f"the argument {subject.url!r} is not a URL")
    url = read_url(value)
    if isinstance(url, str):
        return _unclear(f"the URL can't be read: {url}")
    return _holds(any(host.matches(url.host) for host in domains))


# ---- rules and constraints ----


MAX_WHY: Final = 10_000
"""Longest message of a failed predicate. It is cut after secrets are removed from it."""
Predicate: TypeAlias = Callable[[Call], bool]
Example: TypeAlias = "str | tuple[str, ...] | Mapping[str, object]"
"""The argument of the rule's only condition: a command as words or as a shell string, a URL, or all arguments."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Allow, ask or deny calls of matching tools for which all conditions hold."""

    verdict: Verdict
    tools: Selector
    tests: tuple[Condition, ...] = ()
    predicate: Predicate | None = None
    argv: Prefix | None = None
    domains: tuple[HostRule, ...] | None = None
    matches: tuple[Example, ...] = ()
    never: tuple[Example, ...] = ()
    name: str | None = None
    reason: str | None = None
    """Reason of a denial, for the model."""
    expires_ms: int | None = None

    def __str__(self) -> str:
        return self.name or self.written

    @property
    def written(self) -> str:
        return " ".join([self.verdict, self.tools.text, *self.conditions])

    @property
    def conditions(self) -> Iterator[str]:
        if self.argv is not None:
            yield "argv " + " ".join("|".join(choice) for choice in self.argv)
        if self.domains is not None:
            yield "domains " + ", ".join(map(str, self.domains))
        if self.tests:
            yield "when " + " and ".join(map(str, self.tests))
        if self.predicate is not None:
            yield f"when {getattr(self.predicate, '__name__', type(self.predicate).__name__)}"

    def specificity(self, subject: Subject) -> int | None:
        """The specificity of the rule for the tool of a call; None if the rule does not match the tool."""
        if self.verdict == "allow" and not self.tools.permits(subject):
            return None
        return self.tools.specificity(subject)

    def find(self, subject: Subject, real: Real) -> Finding:
        """Check the conditions for a call of a matching tool; the predicate runs last, if no other condition fails."""
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
        try:
            # A copy: a predicate must not change the arguments that run.
            answer: object = self.predicate(Call(subject.tool, copy.deepcopy(dict(subject.args)), subject.family))
        except Exception as error:  # code of the host: any error denies
            asked = Finding("failed", f"its predicate raised {type(error).__name__}: {str(error)[:MAX_WHY]}")
        else:
            if iscoroutine(answer):
                answer.close()  # it is never awaited
            asked = _holds(answer is True)
            if type(answer) is not bool:
                asked = Finding("failed", f"its predicate gave a {type(answer).__name__}, not True or False")
        return all_of((found, asked))


class Within(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint: the paths of a call must resolve into one of `roots`. It permits nothing by itself."""

    roots: tuple[str, ...]
    tools: Selector
    name: str | None = None

    def __str__(self) -> str:
        return self.name or self.written

    @property
    def written(self) -> str:
        tools = "" if self.tools.everything else f" for {self.tools.text}"
        return f"within {', '.join(self.roots)}{tools}"

    def objection(self, subject: Subject, real: Real) -> str | None:
        """The reason why a call breaks it, or None.

        It denies a tool without paths only if it names the tool: its author believes it confined.
        """
        if self.tools.specificity(subject) is None:
            return None
        if not subject.paths:
            return None if self.tools.everything else "the tool does not say which of its arguments are paths"
        for name in subject.paths:
            paths = paths_in(subject.args.get(name))
            if not paths:
                return f"the path {name!r} is missing"
            why = next((why for path in paths if (why := why_outside(path, self.roots, subject.base, real))), None)
            if why is not None:
                return f"the path {name!r} is outside of {', '.join(self.roots)}: {why}"
        return None


PolicyPart: TypeAlias = Rule | Within


EXACT: Final = 1_000
"""The specificity of a rule that names the tool itself, above any pattern."""
_LONGEST: Final = 200
_WORD: Final = re.compile(r"[A-Za-z0-9_*?-]+")
_FORMS: Final = (
    "a tool, a pattern such as 'read*', a family such as 'files', 'files.read*', 'mcp.SERVER' or 'mcp.SERVER.TOOL'"
)


class Selector(msgspec.Struct, frozen=True):
    """Selects the tools of a rule.

    Without `family`, `name` is a tool or a pattern of names; a word without wildcards may also be a family.
    """

    text: str
    family: str | None
    name: str

    @property
    def everything(self) -> bool:
        return not self.text.strip("*")

    def specificity(self, subject: Subject) -> int | None:
        """`EXACT` for a name, the number of letters of a pattern, or None if it does not match the tool."""
        if self.family is None:
            if matches_wildcards(subject.tool, self.name):
                return EXACT if _is_literal(self.name) else _count_letters(self.name)
            return _count_letters(self.name) if self.name == subject.family else None
        if (
            subject.family is None
            or not matches_wildcards(subject.family, self.family)
            or not matches_wildcards(subject.tool, self.name)
        ):
            return None
        return EXACT if _is_literal(self.name) else _count_letters(self.family + self.name)

    def permits(self, subject: Subject) -> bool:
        """True if an allow rule with this selector may cover the tool.

        An MCP server chooses the names of its tools. It must not get the permission of another tool by taking its name.
        """
        named = self.family is not None and self.family.startswith("mcp.")
        return named or self.everything or not subject.of_server


def parse_selector(text: object, key: str = "tool") -> Selector:
    """Parse a selector; `PolicyInvalid` if it is none."""
    words = text.split(".") if type(text) is str and len(text) <= _LONGEST else []
    if type(text) is not str or not words or not all(_WORD.fullmatch(word) for word in words):
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


# ---- the policy and its decisions ----


MAX_RULES: Final = 1_000
"""Rules and constraints of one policy."""
TAINTED: Final = (
    "the turn has read untrusted input and private data, and this call could send something out; a person decides"
)
_HINTS: Final = 3


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules and constraints. With ``taint=False`` no person is asked about external effects of tainted turns."""

    rules: tuple[PolicyPart, ...] = ()
    _: KW_ONLY
    taint: bool = True
    above: tuple[Policy, ...] = ()
    """Policies of parents; each must permit a call as well."""

    def __post_init__(self) -> None:
        rules = cast("object", self.rules)
        if isinstance(rules, str) or not isinstance(rules, Sequence):
            raise PolicyInvalid(f"a list of rules is wanted, not {excerpt(rules)}")
        object.__setattr__(self, "rules", tuple(self.rules))
        if len(self.rules) > MAX_RULES:
            raise PolicyInvalid(f"it has {len(self.rules):,} rules; the limit is {MAX_RULES:,}")
        for number, rule in enumerate(cast("tuple[object, ...]", self.rules), 1):
            if not isinstance(rule, Rule | Within):
                wanted = "hf.allow(...), hf.ask(...), hf.deny(...) or hf.within(...)"
                raise PolicyInvalid(f"{wanted} is wanted, not {excerpt(rule)}", rule=number)
        if type(self.taint) is not bool:
            raise PolicyInvalid(f"True or False is wanted, not {excerpt(self.taint)}", key="taint")

    @classmethod
    def of(cls, given: Policy | Sequence[PolicyPart] | str | os.PathLike[str] | None) -> Policy | None:
        """The policy of an agent, from a policy, its rules, or the path of its file; None without one."""
        if given is None or isinstance(given, Policy):
            return given
        return cls(tuple(given)) if isinstance(given, list | tuple) else cls.load(cast("str", given))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Load a policy file. Its relative folders begin at the folder of the file."""
        from holdfast.policy.files import load_policy  # it imports this module

        return load_policy(path)

    def dumps(self) -> str:
        """The policy in TOML; `PolicyUnwritable` if it has a predicate."""
        from holdfast.policy.files import format_policy

        return format_policy(self)

    def decide(self, subject: Subject, taint: Taint = CLEAN, *, real: Real = real_path) -> Decision:
        """The decision about a call in a turn with this taint."""
        return decide(self, subject, taint, real=real)


NO_RULES: Final = Policy()
"""The policy of an agent without one: read only."""


def decide(policy: Policy | None, subject: Subject, taint: Taint = CLEAN, *, real: Real = real_path) -> Decision:
    """Decide about a call in a turn with this taint. The content of a call never makes it raise."""
    asked = NO_RULES if policy is None else policy
    decision = _decide_by_rules(asked, subject, real)
    for number, part in enumerate(asked.rules, 1):
        if isinstance(part, Within) and (why := part.objection(subject, real)) is not None:
            decision = stricter_decision(decision, Decision("deny", f"{number}: {part}", why))
            break
    if asked.taint:
        decision = _apply_taint(decision, subject, taint)
    if subject.approval and decision.verdict == "allow":
        decision = Decision("ask", "toolset", f"the toolset of {subject.tool} requires an approval")
    for parent in asked.above:
        over = decide(parent, subject, taint, real=real)
        decision = stricter_decision(decision, msgspec.structs.replace(over, rule=f"parent: {over.rule}"))
    return decision


def _decide_by_rules(policy: Policy, subject: Subject, real: Real) -> Decision:
    levels: dict[int, list[tuple[int, Rule]]] = {}
    has_rules = False
    for number, rule in enumerate(policy.rules, 1):
        if isinstance(rule, Rule):
            has_rules = True
            if (level := rule.specificity(subject)) is not None:
                levels.setdefault(level, []).append((number, rule))
    missed: list[str] = []
    for level in sorted(levels, reverse=True):
        found: Decision | None = None
        # Check all rules of a level: a matching rule must not hide a failing one.
        for number, rule in levels[level]:
            finding, label = rule.find(subject, real), f"{number}: {rule}"
            match finding.state:
                case "no":
                    continue
                case "failed":
                    decision = Decision("deny", label, f"{finding.why}; a rule that fails denies")
                case "unclear" if rule.verdict == "allow":
                    missed.append(f"rule {label} does not cover it: {finding.why}")
                    continue
                case _:
                    why = rule.reason
                    if why is None:
                        why = f"{subject.tool} is meant by {rule.written!r}"
                        why += f"; {finding.why}, which counts against it" if finding.why else ""
                    decision = Decision(rule.verdict, label, why, rule.expires_ms)
            found = decision if found is None else stricter_decision(found, decision)
        if found is not None:
            return found
    if has_rules:
        return Decision("deny", "default", "; ".join(["no rule allows it", *missed[:_HINTS]]))
    if subject.read_only:
        return Decision("allow", "default", "there are no rules, and it only reads")
    return Decision("deny", "default", "there are no rules, and it does not only read; add hf.allow(...) for it")


def _apply_taint(decision: Decision, subject: Subject, taint: Taint) -> Decision:
    # The result of the call can't have caused it, but its data may leave with it.
    private = taint.private_data or subject.private
    if decision.verdict == "deny" or not (taint.untrusted_input and private and subject.reaches_out):
        return decision
    said = TAINTED
    if taint.untrusted_by or taint.private_by:
        private_by = taint.private_by or ("" if taint.private_data else "this call")
        sources = (("untrusted", taint.untrusted_by), ("private", private_by))
        said += f" ({'; '.join(f'{what}: {by}' for what, by in sources if by)})"
    if decision.verdict == "ask":
        return msgspec.structs.replace(decision, why=f"{decision.why}; {said}", tainted=True)
    return Decision("ask", "taint", f"{said} (otherwise: {decision.verdict} by {decision.rule})", tainted=True)


def stricter_decision(one: Decision, other: Decision) -> Decision:
    """The stricter decision, the first if they agree. Two questions become one, open as long as the shorter."""
    if STRICTNESS[other.verdict] > STRICTNESS[one.verdict]:
        return other
    if one.verdict != "ask" or other.verdict != "ask":
        return one
    expires = min((span for span in (one.expires_ms, other.expires_ms) if span is not None), default=None)
    why = f"{one.why}; {other.why}" if other.tainted and not one.tainted else one.why
    return msgspec.structs.replace(one, expires_ms=expires, tainted=one.tainted or other.tainted, why=why)


def narrow(parent: Policy | None, child: Policy | None) -> Policy:
    """The policy of a child agent: always the stricter of both decisions. By default, that of the parent."""
    above = NO_RULES if parent is None else parent
    if child is None:
        return above
    return Policy(child.rules, taint=child.taint, above=(*child.above, above))


def check_agent(name: str, subjects: Iterable[Subject], policy: Policy | None) -> None:
    """Raise `PolicyMissing` for an agent with writing tools and no policy.

    A rule whose name is close to a tool of the agent but matches none raises `PolicyInvalid` if no other rule matches
    that tool. Otherwise it is a warning in the log: the policy may be for other agents as well.
    """
    subjects = list(subjects)
    if policy is None:
        if writing := [subject.tool for subject in subjects if not subject.read_only]:
            raise PolicyMissing(name, writing)
        return
    rules = {number: rule for number, rule in enumerate(policy.rules, 1) if isinstance(rule, Rule)}
    named = {rule.tools.name for rule in rules.values() if rule.tools.family is None}
    for number, rule in rules.items():
        tools = rule.tools
        if tools.family is not None or not _is_literal(tools.name):
            continue
        if any(tools.specificity(subject) is not None for subject in subjects):
            continue
        import logging  # only if a name may be wrong
        from difflib import get_close_matches

        others = {subject.tool: subject for subject in subjects if subject.tool not in named}
        close = get_close_matches(tools.name, others, n=1)
        if not close:
            continue
        said = f"the agent {name!r} has no tool {tools.name!r}; did you mean {close[0]!r}?"
        if all(each.specificity(others[close[0]]) is None for each in rules.values()):
            raise PolicyInvalid(said, rule=number)
        logging.getLogger("holdfast.policy").warning("rule %d of its policy (%s) does nothing: %s", number, rule, said)


class ListedRule(NamedTuple):
    """One rule or constraint."""

    number: int
    rule: PolicyPart
    reaches: tuple[str, ...]
    """The matching tools of the agent; a rule without any is unused, and its name may be wrong."""


def list_rules(policy: Policy, subjects: Iterable[Subject]) -> list[ListedRule]:
    """Rules in the order of their checks, then constraints; those without a matching tool last."""
    tools = list(subjects)
    listed: list[tuple[tuple[int, ...], ListedRule]] = []
    for number, part in enumerate(policy.rules, 1):
        if isinstance(part, Rule):
            levels = {tool.tool: part.specificity(tool) for tool in tools}
        else:  # a constraint for all tools matches those with paths
            about = [tool for tool in tools if tool.paths or not part.tools.everything]
            levels = {tool.tool: part.tools.specificity(tool) for tool in about}
        reached = {tool: level for tool, level in levels.items() if level is not None}
        place = (-max(reached.values(), default=0), -STRICTNESS[part.verdict]) if isinstance(part, Rule) else (0, 0)
        order = (not reached, isinstance(part, Within), *place, number)
        listed.append((order, ListedRule(number, part, tuple(reached))))
    return [found for _, found in sorted(listed, key=itemgetter(0))]


# ---- writing rules ----


def milliseconds(span: timedelta | float) -> int:
    """A timedelta, or seconds, in milliseconds."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if type(seconds) not in (int, float) or not 0 < seconds <= 10 * 365 * 86_400:
        raise InvalidArgument("time", span, "a timedelta or a number of seconds, above zero and below ten years")
    return max(1, round(seconds * 1000))


When: TypeAlias = "Callable[[Call], bool] | Mapping[str, Mapping[str, Any]]"
"""A predicate on the call, or conditions on its arguments such as ``{"cents": {"above": 5000}}``."""
Argv: TypeAlias = "Sequence[str | Sequence[str]]"
"""The first words of a command; a list in place of a word gives alternatives."""
Examples: TypeAlias = "Sequence[str | Sequence[str] | Mapping[str, Any]]"
MOST: Final = 200
"""Words of a command, hosts, folders, conditions or examples of one rule."""
LONGEST: Final = 1_000
"""Characters of one text in a rule."""


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
    ``mcp.SERVER.TOOL``. All conditions must hold: `when` is a function of the call or conditions on its arguments,
    `argv` the first words of its command, `domains` the allowed hosts of its URL. `matches` and `never` are examples,
    checked at once: a rule that decides them otherwise is an error.
    """
    return _rule("allow", tool, (when, argv, domains, matches, never, name))


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
    """A rule that asks a person. The question stays open for `expires`, then counts as denied. See `allow`."""
    return _rule("ask", tool, (when, argv, domains, matches, never, name), expires_ms=_span(expires))


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
    """A rule that denies calls; the model reads the `reason`. See `allow`."""
    said = None if reason is None else _text("reason", reason)
    return _rule("deny", tool, (when, argv, domains, matches, never, name), reason=said)


def within(*roots: str | PurePath, tools: str = "*", name: str | None = None) -> Within:
    """A constraint: paths must resolve into one of these folders, links followed. It permits nothing by itself.

    It holds for `tools`, or for all tools that declare path arguments.
    """
    label = None if name is None else _text("name", name)
    return Within(roots=parse_roots("within", list(roots)), tools=parse_selector(tools, "tools"), name=label)


def _rule(
    verdict: Verdict, tool: str, given: Sequence[object], *, reason: str | None = None, expires_ms: int | None = None
) -> Rule:
    when, argv, domains, matches, never, name = given
    predicate, tests = _conditions(when)
    made = Rule(
        verdict=verdict,
        tools=parse_selector(tool),
        tests=tests,
        predicate=predicate,
        argv=None if argv is None else tuple(_words("argv", word) for word in _list("argv", argv)),
        domains=None
        if domains is None
        else tuple(parse_host_rule(_text("domains", text)) for text in _list("domains", domains)),
        matches=_examples("matches", matches),
        never=_examples("never", never),
        name=None if name is None else _text("name", name),
        reason=reason,
        expires_ms=expires_ms,
    )
    _check_examples(made)
    return made


def _text(key: str, value: object) -> str:
    if type(value) is not str or not 0 < len(value) <= LONGEST:
        raise PolicyInvalid(f"{excerpt(value)} is not text of 1 to {LONGEST:,} characters", key=key)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PolicyInvalid(f"{excerpt(value)} holds a lone surrogate", key=key) from None
    return value


def _list(key: str, value: object, wanted: str = "a list", *, least: int = 1) -> list[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise PolicyInvalid(f"{wanted} is wanted, not {excerpt(value)}", key=key)
    found = list(cast("Sequence[object]", value))
    if not least <= len(found) <= MOST:
        raise PolicyInvalid(f"it has {len(found):,} entries; 1 to {MOST} can be meant", key=key)
    return found


def _words(key: str, given: object) -> tuple[str, ...]:
    return tuple(_text(key, word) for word in ([given] if isinstance(given, str) else _list(key, given)))


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


def _conditions(when: object) -> tuple[Predicate | None, tuple[Condition, ...]]:
    if when is None:
        return None, ()
    if isinstance(when, Mapping):
        given = cast("Mapping[object, object]", when)
        if not 0 < len(given) <= MOST:
            raise PolicyInvalid(f"it has {len(given):,} conditions; 1 to {MOST} can be meant", key="when")
        return None, tuple(test for argument, asked in given.items() for test in _argument(argument, asked))
    if not callable(when):
        raise PolicyInvalid(f"a function or conditions on arguments are wanted, not {excerpt(when)}", key="when")
    if iscoroutinefunction(when):
        raise PolicyInvalid("a predicate is a plain function: it decides from the call alone", key="when")
    return cast("Predicate", when), ()


def _argument(argument: object, asked: object) -> Iterator[Condition]:
    name = _text("when", argument)
    key = f"when.{name}"
    if not isinstance(asked, Mapping) or not asked:
        shown = excerpt(cast("object", asked))
        raise PolicyInvalid(f'conditions such as {{"above": 5000}} are wanted, not {shown}', key=key)
    for word, given in cast("Mapping[object, object]", asked).items():
        value: object
        match word:
            case "equals":
                value = _scalar(f"{key}.equals", given)
            case "one_of":
                value = tuple(_scalar(f"{key}.one_of", one) for one in _list(f"{key}.one_of", given))
            case "above" | "below":
                value = _number(f"{key}.{word}", given)
            case "matches":
                value = _text(f"{key}.matches", given)
            case "within":
                value = parse_roots(f"{key}.within", [given] if isinstance(given, str | PurePath) else given)
            case _:
                known = "equals, one_of, above, below, matches, within"
                raise PolicyInvalid(f"there is no condition {excerpt(word)}; there are {known}", key=key)
        yield Condition(name, cast("Word", word), value)


def _scalar(key: str, value: object) -> Scalar:
    if type(value) is str:
        return value if not value else _text(key, value)
    return value if type(value) is bool else _number(key, value)


def _number(key: str, value: object) -> float:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return cast("float", value)
    raise PolicyInvalid(f"{excerpt(value)} is not a number that can be compared", key=key)


def _examples(key: str, given: object) -> tuple[Example, ...]:
    return tuple(
        one
        if isinstance(one, str)
        else dict(cast("Mapping[str, object]", one))
        if isinstance(one, Mapping)
        else _words(key, one)
        for one in _list(key, given, "a list of examples", least=0)
    )


def _check_examples(rule: Rule) -> None:
    """Raise `PolicyInvalid` for the first example that the rule decides otherwise."""
    for key, examples, wanted in (("matches", rule.matches, True), ("never", rule.never, False)):
        for example in examples:
            found = rule.find(_example_call(rule, key, example), real_path)
            if found.state == "failed":
                raise PolicyInvalid(f"{excerpt(example)}: {found.why}", key=key)
            covered = found.state == "yes" or (found.state == "unclear" and rule.verdict != "allow")
            if covered is not wanted:
                what = "is not covered by the rule" if wanted else "is covered by the rule"
                raise PolicyInvalid(f"{excerpt(example)} {what}{f' ({found.why})' if found.why else ''}", key=key)


def _example_call(rule: Rule, key: str, example: Example) -> Subject:
    """A call for an example; only real tools know the names of their arguments."""
    tested = bool(rule.tests) or rule.predicate is not None
    if sum((rule.argv is not None, rule.domains is not None, tested)) != 1:
        raise PolicyInvalid("examples need a rule with exactly one of argv, domains and when", key=key)
    if rule.argv is not None:
        if not isinstance(example, Mapping):
            return Subject(tool="example", args={"command": example}, command="command")
        wanted = "a command"
    elif rule.domains is not None:
        if isinstance(example, str):
            return Subject(tool="example", args={"url": example}, url="url")
        wanted = "a URL"
    else:
        if isinstance(example, Mapping):
            return Subject(tool="example", args=example)
        wanted = "arguments, as a mapping"
    raise PolicyInvalid(f"{excerpt(example)} is no example for this rule; {wanted} is wanted", key=key)
