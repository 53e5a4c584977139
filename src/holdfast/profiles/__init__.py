"""Profiles: named configurations of a host, with secrets only by reference."""

from __future__ import annotations

from holdfast.profiles.folder import Profiles as Profiles
from holdfast.profiles.folder import profiles_folder as profiles_folder
from holdfast.profiles.profile import KeyringUnavailable as KeyringUnavailable
from holdfast.profiles.profile import NoProfilesFolder as NoProfilesFolder
from holdfast.profiles.profile import Profile as Profile
from holdfast.profiles.profile import ProfileInvalid as ProfileInvalid
from holdfast.profiles.profile import ProfilePrice as ProfilePrice
from holdfast.profiles.profile import ProfilesBusy as ProfilesBusy
from holdfast.profiles.profile import ProfilesUnsafe as ProfilesUnsafe
from holdfast.profiles.profile import ProfileUnknown as ProfileUnknown
from holdfast.profiles.profile import ReferenceInvalid as ReferenceInvalid
from holdfast.profiles.profile import SecretMissing as SecretMissing
from holdfast.profiles.profile import SecretReference as SecretReference
from holdfast.profiles.profile import SecretRefused as SecretRefused
