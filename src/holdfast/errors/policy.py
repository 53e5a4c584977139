"""Policies: what can't be meant, what is missing, what can't be written down or must not be obeyed. And slow hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors.tree import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN: Final = 5


class PolicyInvalid(UsageError):
    """A rule, or a policy file, that can't be meant. `file`, `rule` (its number) and `key` say where, if known."""

    def __init__(
        self, reason: str, *, key: str | None = None, rule: int | None = None, file: str | None = None
    ) -> None:
        where = [] if file is None else [file]
        where += [] if rule is None else [f"rule {rule}"]
        where += [] if key is None else [f"{key!r}"]
        super().__init__(f"the policy is not valid: {', '.join(where)}{': ' if where else ''}{reason}")
        self.reason = reason
        self.key = key
        self.rule = rule
        self.file = file

    def located(self, *, file: str | None, rule: int | None) -> PolicyInvalid:
        """The same complaint, with the place it is about."""
        return PolicyInvalid(self.reason, key=self.key, rule=rule, file=file)


class PolicyMissing(UsageError):
    """An agent whose tools change things, and nobody said what it may do."""

    def __init__(self, agent: str, tools: Sequence[str]) -> None:
        more = f" and {len(tools) - _SHOWN} more" if len(tools) > _SHOWN else ""
        named = ", ".join(tools[:_SHOWN]) + more
        super().__init__(
            f"the agent {agent!r} has tools that write ({named}) and no policy. Say what it may do:\n"
            f'    policy=[hf.ask("{tools[0]}"), hf.allow("*")]   # ask a person before this one\n'
            f'    policy=[hf.allow("*")]   # or allow everything'
        )
        self.agent = agent
        self.tools = tuple(tools)


class PolicyUnwritable(UsageError):
    """A policy that no file can say."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"the rule {rule!r} can't be written to a file: {reason}")
        self.rule = rule
        self.reason = reason


class PolicyUnsafe(UsageError):
    """A policy file that somebody else could change, so it is not obeyed."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"the policy {file} is not obeyed: {reason}")
        self.file = file
        self.reason = reason


class HookTimeout(UsageError):
    """A hook took longer than its time limit. Where it decides, that is a denial."""

    def __init__(self, hook: str, where: str, seconds: float) -> None:
        super().__init__(
            f"{hook}.{where} did not end within {seconds:g} s; make it quicker, or set `timeout` (seconds) in {hook}"
        )
        self.hook = hook
        self.where = where
        self.seconds = seconds
