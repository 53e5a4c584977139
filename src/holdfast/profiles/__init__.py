"""Profiles: named configurations of a host, with secrets only by reference."""

from __future__ import annotations

from holdfast.profiles.folder import Profiles, profiles_folder
from holdfast.profiles.profile import (
    KeyringUnavailable,
    PriceLine,
    Profile,
    ProfileInvalid,
    ProfilesBusy,
    ProfilesHomeless,
    ProfilesUnsafe,
    ProfileUnknown,
    Reference,
    ReferenceInvalid,
    SecretMissing,
    SecretRefused,
)

__all__ = [
    "KeyringUnavailable",
    "PriceLine",
    "Profile",
    "ProfileInvalid",
    "ProfileUnknown",
    "Profiles",
    "ProfilesBusy",
    "ProfilesHomeless",
    "ProfilesUnsafe",
    "Reference",
    "ReferenceInvalid",
    "SecretMissing",
    "SecretRefused",
    "profiles_folder",
]
