"""Profiles: named configurations of a host, with secrets only by reference."""

from __future__ import annotations

from holdfast.profiles.errors import (
    KeyringUnavailable,
    ProfileInvalid,
    ProfilesBusy,
    ProfilesHomeless,
    ProfilesUnsafe,
    ProfileUnknown,
    ReferenceInvalid,
    SecretMissing,
    SecretRefused,
)
from holdfast.profiles.folder import Profiles, profiles_folder
from holdfast.profiles.profile import PriceLine, Profile
from holdfast.profiles.references import Reference

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
