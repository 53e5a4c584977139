"""Profiles: named configurations of a host, with secrets only by reference."""

from __future__ import annotations

from holdfast.profiles.folder import Profiles, profiles_folder
from holdfast.profiles.profile import (
    KeyringUnavailable,
    NoProfilesFolder,
    Profile,
    ProfileInvalid,
    ProfilePrice,
    ProfilesBusy,
    ProfilesUnsafe,
    ProfileUnknown,
    ReferenceInvalid,
    SecretMissing,
    SecretReference,
    SecretRefused,
)

__all__ = [
    "KeyringUnavailable",
    "NoProfilesFolder",
    "Profile",
    "ProfileInvalid",
    "ProfilePrice",
    "ProfileUnknown",
    "Profiles",
    "ProfilesBusy",
    "ProfilesUnsafe",
    "ReferenceInvalid",
    "SecretMissing",
    "SecretReference",
    "SecretRefused",
    "profiles_folder",
]
