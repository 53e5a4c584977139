"""From a reference to the secret itself, at the moment when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidId
from holdfast.names import check_string
from holdfast.profiles.errors import KeyringUnavailable, SecretMissing
from holdfast.profiles.references import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.profiles.profile import Profile
    from holdfast.profiles.references import Reference


def wanted(profile: Profile, environ: Mapping[str, str]) -> dict[str, Reference]:
    """The variables that a profile gives and that are not set yet, and where each is found."""
    return {
        variable: parse(reference)
        for variable, reference in profile.secrets.items()
        if not environ.get(variable, "").strip()
    }


def secret(reference: Reference, wanted_as: str, environ: Mapping[str, str]) -> str:
    """The secret itself; `SecretMissing` when there is none."""
    found = environ.get(reference.name, "") if reference.place == "env" else _from_keyring(reference)
    if not found.strip():
        raise SecretMissing(str(reference), wanted_as)
    try:
        check_string(wanted_as, found)
    except InvalidId:
        found = "\0"
    if "\0" in found:
        raise KeyringUnavailable(str(reference), "what it holds is no text")
    return found


def _from_keyring(reference: Reference) -> str:
    try:
        keyring: Any = import_module("keyring")
    except ImportError:
        raise KeyringUnavailable(str(reference), "the package 'keyring' is not installed") from None
    failed = ""
    found: object = None
    try:
        found = keyring.get_password(reference.service, reference.name)
    except Exception as error:  # noqa: BLE001  each keyring has errors of its own
        failed = type(error).__name__
    if failed:  # raised out here, because what a keyring says may tell more than anybody should read
        raise KeyringUnavailable(str(reference), f"the keyring failed with {failed}")
    return found if isinstance(found, str) else ""
