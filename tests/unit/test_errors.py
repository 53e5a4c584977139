"""Errors that declare their fields and their message."""

from __future__ import annotations

import pytest

from holdfast.errors import AgentInvalid, ProcessPruned, RunFailed, TemplateUnfilled


class Explained(AgentInvalid):
    """A host's own error, with a field of its own."""

    advice: str

    def __init__(self, agent: str, reason: str, advice: str) -> None:
        super().__init__(agent, reason)
        self.advice = advice


def test_an_error_of_the_host_may_have_fields_of_its_own() -> None:
    error = Explained("a", "it is odd", "read the docs")
    assert str(error) == "the agent 'a' is not valid: it is odd"
    assert vars(error) == {"agent": "a", "reason": "it is odd", "advice": "read the docs"}


def test_braces_in_fields_stay() -> None:
    assert str(RunFailed("j{0}", "{run}", "Odd", "{journal} {}")) == "{run} of 'j{0}' failed: Odd: {journal} {}"
    assert str(TemplateUnfilled("a{b}", "{reason}")).startswith("the place {a{b}} can't be filled: {reason}; ")


def test_an_error_takes_its_fields_by_place_and_by_name_and_no_others() -> None:
    error = ProcessPruned("p", at=3, status="done")
    assert (error.process, error.status, error.at) == ("p", "done", 3)
    with pytest.raises(TypeError):
        ProcessPruned("p", "done")  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError):
        ProcessPruned("p", "done", 3, reason="no")  # pyright: ignore[reportCallIssue]
