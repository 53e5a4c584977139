"""Rules and constraints: what each is, and whether it is about a call. They are made by the functions in `making`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutine
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.policy.conditions import (
    NO,
    YES,
    Above,
    Below,
    Equals,
    Finding,
    Inside,
    Matches,
    OneOf,
    begins,
    both,
    outside,
    paths_in,
    visits,
)
from holdfast.policy.subject import Call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.policy.conditions import ArgumentTest, Prefix, Real, Test
    from holdfast.policy.hosts import Host
    from holdfast.policy.selecting import Selector
    from holdfast.policy.subject import Subject, Verdict

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
    domains: tuple[Host, ...] | None = None
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
            said = (f"{one.argument} {written_test(test)}" for one in self.tests for test in one.tests)
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
        found = both(
            (
                YES if self.argv is None else begins(self.argv, subject, named=named),
                YES if self.domains is None else visits(self.domains, subject, named=named),
                *(test.find(subject, real) for test in self.tests),
            )
        )
        if found.state == "no" or self.predicate is None:
            return found
        return both((found, _asked(self.predicate, subject)))


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
        why = next((why for path in paths if (why := outside(path, self.roots, subject.base, real))), None)
        return None if why is None else f"the path {name!r} is outside of {', '.join(self.roots)}: {why}"


Given: TypeAlias = Rule | Within
"""What a policy is made of."""


def written_test(test: Test) -> str:
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
