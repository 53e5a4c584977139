"""Secrets are looked up when they are used, by reference or by a function of the host, and no error shows one."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidArgument
from holdfast.errors.caller import SecretNameInvalid, SecretTooShort, SecretUnknown
from holdfast.errors.world import SecretUnavailable
from holdfast.profiles import ReferenceInvalid, SecretMissing
from holdfast.secrets.redactor import Redactor
from holdfast.secrets.sources import SecretAccess, Secrets, make_secrets

KEY = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"


@pytest.fixture
def key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", KEY)


@pytest.mark.usefixtures("key_in_the_environment")
def test_a_reference_to_a_variable_gives_its_value() -> None:
    assert Secrets({"KEY": "env:CANARY_KEY"}).fetch("KEY") == KEY


def test_a_value_is_looked_up_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = Secrets({"KEY": "env:CANARY_KEY"})
    monkeypatch.setenv("CANARY_KEY", "first-value")
    first = secrets.fetch("KEY")
    monkeypatch.setenv("CANARY_KEY", "second-value")
    assert (first, secrets.fetch("KEY")) == ("first-value", "second-value")


def test_a_variable_that_is_not_set_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANARY_KEY", raising=False)
    with pytest.raises(SecretMissing) as caught:
        Secrets({"KEY": "env:CANARY_KEY"}).fetch("KEY")
    assert (caught.value.reference, caught.value.wanted_as) == ("env:CANARY_KEY", "KEY")


def test_a_function_for_one_secret_is_asked_each_time() -> None:
    given = iter(["first-value", "second-value"])
    secrets = Secrets({"KEY": lambda: next(given)})
    assert [secrets.fetch("KEY"), secrets.fetch("KEY")] == ["first-value", "second-value"]


def test_one_function_may_give_all_secrets() -> None:
    assert Secrets(lambda name: f"value-of-{name}").fetch("KEY") == "value-of-KEY"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SecretUnknown) as caught:
        Secrets({"ONE": "env:A", "TWO": "env:B"}).fetch("THREE")
    assert caught.value.known == ("ONE", "TWO")
    assert "ONE, TWO" in str(caught.value)


def test_a_function_may_answer_that_it_does_not_know_a_name() -> None:
    known: dict[str, str] = {}
    with pytest.raises(SecretUnknown):
        Secrets(known.get).fetch("KEY")


def test_a_function_may_raise_that_it_does_not_know_a_name() -> None:
    known: dict[str, str] = {}
    with pytest.raises(SecretUnknown):
        Secrets(known.__getitem__).fetch("KEY")


def test_what_a_function_raises_is_not_told() -> None:
    def fails() -> str:
        raise ConnectionError(f"vault said {KEY}")

    with pytest.raises(SecretUnavailable) as caught:
        Secrets({"KEY": fails}).fetch("KEY")
    error = caught.value
    assert "ConnectionError" in str(error)
    assert KEY not in str(error)
    assert (error.__cause__, error.__context__) == (None, None)


async def _soon() -> str:
    return KEY


@pytest.mark.parametrize("source", [_soon, lambda: None, KEY.encode], ids=["async", "none", "bytes"])
def test_a_function_that_gives_no_text_is_an_error(source: object) -> None:
    with pytest.raises(SecretUnavailable) as caught:
        Secrets({"KEY": source}).fetch("KEY")  # type: ignore[dict-item]
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("source", [KEY, "env:sk_live_4eC39HqLyjWDarjtT1zdp7dc", "plain words", ""])
def test_a_value_in_the_place_of_a_reference_is_refused_and_not_shown(source: str) -> None:
    with pytest.raises(ReferenceInvalid) as caught:
        Secrets({"KEY": source})
    assert not source or source not in str(caught.value)


@pytest.mark.parametrize("given", [KEY, 7, [KEY], {"KEY": 7}, {"KEY": [KEY]}])
def test_what_can_not_be_meant_is_refused_and_not_shown(given: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make_secrets(given)  # type: ignore[arg-type]
    assert KEY not in str(caught.value)


def test_a_name_that_can_not_stand_in_a_text_is_refused() -> None:
    with pytest.raises(SecretNameInvalid):
        Secrets({"my key": "env:KEY"})


def test_short_is_a_list_of_names() -> None:
    with pytest.raises(InvalidArgument):
        Secrets({"PIN": "env:PIN"}, short="PIN")


def test_without_secrets_no_name_is_known() -> None:
    assert make_secrets(None).names == ()


def test_secrets_are_taken_as_they_are() -> None:
    secrets = Secrets({})
    assert make_secrets(secrets) is secrets


# ---- lending ----


def test_what_was_lent_is_hidden() -> None:
    redactor = Redactor()
    value = SecretAccess(Secrets({"KEY": lambda: KEY}), redactor)["KEY"]
    assert (value, redactor.text(value)) == (KEY, "[secret KEY]")


def test_a_value_that_is_too_short_is_not_lent() -> None:
    with pytest.raises(SecretTooShort):
        SecretAccess(Secrets({"PIN": lambda: "1234"}), Redactor())["PIN"]


def test_a_value_that_may_be_short_is_lent() -> None:
    assert SecretAccess(Secrets({"PIN": lambda: "1234"}, short=["PIN"]), Redactor())["PIN"] == "1234"


def test_a_lender_tells_names_and_no_values() -> None:
    lender = SecretAccess(Secrets({"KEY": lambda: KEY}), Redactor())
    assert (list(lender), "KEY" in lender, "OTHER" in lender, len(lender)) == (["KEY"], True, False, 1)
    assert KEY not in repr(lender)


@pytest.mark.usefixtures("key_in_the_environment")
def test_what_is_in_the_environment_is_hidden_before_anybody_uses_it() -> None:
    redactor = Redactor()
    SecretAccess(Secrets({"KEY": "env:CANARY_KEY", "NONE": "env:CANARY_NONE"}), redactor).hide_environment()
    assert redactor.text(KEY) == "[secret KEY]"


def test_a_value_of_the_environment_that_can_not_be_used_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_PIN", "1234")
    redactor = Redactor()
    SecretAccess(Secrets({"PIN": "env:CANARY_PIN"}), redactor).hide_environment()
    assert redactor.names == ()


def test_no_function_is_asked_before_its_secret_is_used() -> None:
    asked: list[str] = []
    SecretAccess(Secrets({"KEY": lambda: asked.append("KEY") or KEY}), Redactor()).hide_environment()
    assert asked == []
