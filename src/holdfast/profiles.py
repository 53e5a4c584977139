"""Profiles: named configurations of a host, with secrets only by reference.

In this order: errors, references to secrets, the fields of a profile, assignments, and the folder of profiles: a file
of mode 0600 for each, in a folder of mode 0700, written atomically.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.errors import HoldfastError, InvalidId, UsageError, WorldError
from holdfast.errors.fields import ErrorFields
from holdfast.names import check_id, check_name, check_string
from holdfast.plainfiles import lock_file, read_plain_file, sync_folder, write_new_file


class ProfileUnknown(UsageError):
    """There is no profile of this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        choice = f"there are {', '.join(known[:20])}" if known else "there are none"
        super().__init__(f"there is no profile {name!r}: {choice}; 'holdfast profiles set {name} ...' makes it")
        self.name = name
        self.known = tuple(known)


class ProfileInvalid(ErrorFields, UsageError):
    """A profile is not valid."""

    name: str
    reason: str
    _message = "the profile {name!r} is not valid: {reason}"


class SecretRefused(ErrorFields, UsageError):
    """A profile may not hold a secret, only a reference to one."""

    name: str
    field: str
    _message = """{field} of the profile {name!r} looks like a key itself; profiles hold no secrets: put it into an
        environment variable or the system keyring, and write env:NAME or keyring:service/name under secrets"""


class ReferenceInvalid(ErrorFields, UsageError):
    """A text is not a reference to a secret. The error does not show it, because it may be the secret."""

    reason: str
    _message = "a reference to a secret is env:NAME or keyring:service/name: {reason}"


class SecretMissing(ErrorFields, UsageError):
    """There is no secret at a reference."""

    reference: str
    wanted_as: str
    _message = "{wanted_as} is to be taken from {reference}, but nothing is there; set it"


class KeyringUnavailable(ErrorFields, WorldError):
    """The system keyring can't be read."""

    reference: str
    reason: str
    _message = "{reference} can't be read: {reason}"


class ProfilesUnsafe(ErrorFields, UsageError):
    """Another user could have written a profile. It names code to run, so it is not used."""

    path: Path
    reason: str
    remedy: str
    _message = "{path} is not trusted: {reason}; {remedy}"


class NoProfilesFolder(ErrorFields, UsageError):
    """There is no folder for profiles."""

    _message = "there is no home folder to keep profiles in; name a folder with HOLDFAST_PROFILES"


class ProfilesBusy(ErrorFields, WorldError):
    """Another process changes the profiles."""

    path: Path
    _message = "another process is changing the profiles in {path}; try again"


VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
"""Names of environment variables."""
_RANDOM: Final = re.compile(r"(?=[A-Za-z]*\d)(?=\w*[a-z])(?=\w*[A-Z])[A-Za-z0-9]{24,}|\b[0-9a-f]{32,}\b", re.ASCII)
"""Words that look random."""
_SEPARATORS: Final = re.compile(r"[/\\:=,;@\s]+")


class SecretReference(NamedTuple):
    """The location of a secret."""

    place: Literal["env", "keyring"]
    service: str
    """Service of the keyring; empty for a variable."""
    name: str

    def __str__(self) -> str:
        return f"{self.place}:{self.service}{'/' if self.service else ''}{self.name}"


def parse_reference(text: str) -> SecretReference:
    """Parse a reference. Raises `ReferenceInvalid`."""
    place, colon, rest = text.partition(":")
    if not colon or place not in {"env", "keyring"}:
        raise ReferenceInvalid("it begins with one of these words")
    if looks_like_key(rest):
        raise ReferenceInvalid("what follows looks like a key itself, not like the name of one")
    if place == "env":
        if not VARIABLE.fullmatch(rest):
            raise ReferenceInvalid("what follows env: is the name of a variable, of letters, digits and _")
        return SecretReference("env", "", rest)
    service, _, name = rest.rpartition("/")
    try:
        return SecretReference("keyring", check_id("keyring service", service), check_id("keyring name", name))
    except InvalidId:
        raise ReferenceInvalid("what follows keyring: is a service and a name, with a slash between them") from None


def looks_like_key(text: str, *, place: bool = False) -> bool:
    """True if a text has the shape of a key. A path (`place`) may hold random words."""
    from holdfast.models.redaction import RecordingRedactor  # most commands do not need it

    # Shapes match only at the beginning of a word; here that is also after a separator.
    shaped = any(RecordingRedactor().text(piece) != piece for piece in {text, *_SEPARATORS.split(text)})
    return shaped or (not place and _RANDOM.search(text) is not None)


Output = Literal["text", "json", "events"]
_PATH_FIELDS: Final = frozenset(("store", "agent"))
"""Fields that are paths."""
_MAX_ENTRIES: Final = 100
"""Most prices, and most secrets, of one profile."""
_MAX_TEXT: Final = 1_000
_HINTS: Final = {"key", "api_key", "token", "secret", "password"}
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")


class ProfilePrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """US dollars for a million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A configuration of a host. None in a field means no setting."""

    store: str | None = None
    """The store file: an absolute path, or one below ``~/``."""
    agent: str | None = None
    """``/path/file.py:name`` or ``package.module:name``, for commands that take an agent."""
    model: str | None = None
    """``provider:model``, for commands that take a model."""
    output: Output | None = None
    deadline: float | None = None
    """Deadline of a turn, in seconds."""
    prices: dict[str, ProfilePrice] = {}
    """By ``provider:model``; they override the known prices."""
    secrets: dict[str, str] = {}
    """Environment variables for commands, with their references: ``env:NAME``, ``keyring:service/name``."""


FIELDS: Final = tuple(name for name in Profile.__struct_fields__ if name not in {"prices", "secrets"})


def decode_profile(name: str, data: bytes) -> Profile:
    """Decode and check the file of a profile."""
    try:
        raw: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ProfileInvalid(name, "its file holds no JSON; 'holdfast profiles rm' removes it") from None
    _refuse_keys(name, raw)  # first, because other errors repeat values
    try:
        found = msgspec.convert(raw, Profile)
    except msgspec.ValidationError as error:
        raise ProfileInvalid(name, _explain(str(error))) from None
    return check_profile(name, found)


def encode_profile(profile: Profile) -> bytes:
    """Encode a profile for people to read, always the same way."""
    return msgspec.json.format(msgspec.json.encode(profile, order="sorted"), indent=2) + b"\n"


def check_profile(name: str, profile: Profile) -> Profile:
    """Check a profile, and return it."""
    _refuse_keys(name, msgspec.to_builtins(profile))
    for field, reason in _problems(profile):
        raise ProfileInvalid(name, f"{field} {reason}")
    return profile


def _refuse_keys(name: str, raw: Any) -> None:  # any JSON value
    """Refuse texts in the shape of a key, in any field."""
    try:
        for field, text in _strings(raw):
            if len(text) > _MAX_TEXT:
                raise ProfileInvalid(name, f"{field} has {len(text):,} characters, the limit is {_MAX_TEXT:,}")
            if looks_like_key(text, place=field in _PATH_FIELDS):
                raise SecretRefused(name, field)
    except RecursionError:
        raise ProfileInvalid(name, "it is nested too deeply") from None


def _strings(value: Any, field: str = "") -> Iterator[tuple[str, str]]:  # any JSON value
    """Yield all texts of a JSON value with their fields, names included."""
    if isinstance(value, str):
        yield field or "it", value
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield f"the name of an entry of {field}" if field else "the name of a field", name
            yield from _strings(item, f"{field}.{name}" if field else name)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _strings(item, field)


def _explain(said: str) -> str:
    unknown = _UNKNOWN.search(said)
    if unknown is None:
        return said[:1].lower() + said[1:]
    field = unknown[1]
    hint = "; write a key as secrets.VARIABLE: env:NAME or keyring:service/name" if field.lower() in _HINTS else ""
    return f"there is no field {field!r}; it has {', '.join((*FIELDS, 'prices', 'secrets'))}{hint}"


def _problems(profile: Profile) -> Iterator[tuple[str, str]]:
    if profile.store is not None and not is_absolute(profile.store):
        yield "store", "is no absolute path; a profile is used from any folder"
    if profile.agent is not None:
        yield from (("agent", reason) for reason in _agent_problems(profile.agent))
    if profile.model is not None and not is_model_name(profile.model):
        yield "model", "is no name such as provider:model"
    if profile.deadline is not None and not 0 < profile.deadline < math.inf:
        yield "deadline", "is no number of seconds above zero"
    for field, entries in (("prices", profile.prices), ("secrets", profile.secrets)):
        if len(entries) > _MAX_ENTRIES:
            yield field, f"has {len(entries):,} entries, the limit is {_MAX_ENTRIES}"
    for model, price in profile.prices.items():
        if not is_model_name(model):
            yield f"prices.{model}", "does not name a model as provider:model, or provider:*"
        from holdfast.models.prices import Price  # most profiles have none

        try:
            Price(**msgspec.structs.asdict(price))
        except HoldfastError as error:
            yield f"prices.{model}", f"can't be: {error}"
    for variable, reference in profile.secrets.items():
        if not VARIABLE.fullmatch(variable):
            yield f"secrets.{variable}", "is no name of an environment variable"
        try:
            parse_reference(reference)
        except UsageError as error:
            yield f"secrets.{variable}", f"is not valid: {error}"


def is_absolute(path: str) -> bool:
    """True if a path is the same from any folder."""
    if not path or not path.isprintable() or path.endswith("/"):
        return False
    return PurePath(path).is_absolute() or path.startswith("~/")


def is_model_name(name: str) -> bool:
    """True if a text has the form ``provider:model``."""
    try:
        provider, colon, model = check_id("model", name).partition(":")
    except InvalidId:
        return False
    return bool(provider and colon and model)


def _agent_problems(reference: str) -> Iterator[str]:
    place, _, name = reference.rpartition(":") if ":" in reference else (reference, "", "agent")
    if not place or not name.isidentifier():
        yield "is no file.py:name or package.module:name"
    elif place.endswith(".py"):
        if not is_absolute(place):
            yield "names a file by no absolute path; a profile is used from any folder"
    elif not all(part.isidentifier() for part in place.split(".")):
        yield "is no file.py:name or package.module:name"


def apply_assignments(name: str, profile: Profile, assignments: Sequence[str], folder: str) -> Profile:
    """Apply assignments ``field=value`` to a profile; an empty value removes the field.

    Fields are those of a profile, ``price.provider:model`` (``input,output``, optionally ``,cache_read,cache_write``)
    and ``secret.VARIABLE``. Relative paths start at `folder`.
    """
    fields: dict[str, Any] = msgspec.to_builtins(profile)
    for assignment in assignments:
        field, equals, value = assignment.partition("=")
        if not equals:
            # The text is not shown: it may be a secret without its field.
            raise ProfileInvalid(name, "a change is written field=value, and field= takes it away")
        kind, dot, entry = field.partition(".")
        table = {"price": "prices", "secret": "secrets"}.get(kind.removesuffix("s"))
        made: Any = value
        if dot and table is not None and entry:
            target, key = fields.setdefault(table, {}), entry
            if value and table == "prices":
                made = _parse_price(name, field, value)
        elif field in FIELDS:
            target, key = fields, field
            if value:
                made = _parse_value(name, field, value, folder)
        else:
            _refuse_keys(name, {field: ""})
            raise ProfileInvalid(name, _explain(f"unknown field `{field}`"))
        if value:
            target[key] = made
        else:
            target.pop(key, None)
    return decode_profile(name, msgspec.json.encode(fields))


def _parse_value(name: str, field: str, value: str, folder: str) -> Any:  # any JSON value
    match field:
        case "deadline":
            return _parse_number(name, field, value)
        case "store":
            return _absolute(value, folder)
        case "agent":
            place, colon, agent = value.rpartition(":") if ":" in value else (value, "", "")
            return f"{_absolute(place, folder)}{colon}{agent}" if place.endswith(".py") else value
        case _:
            return value


def _absolute(path: str, folder: str) -> str:
    return path if path.startswith("~/") else str(PurePath(folder, path))


def _parse_price(name: str, field: str, value: str) -> dict[str, float]:
    amounts = [_parse_number(name, field, word) for word in value.split(",")]
    if not 2 <= len(amounts) <= 4:
        raise ProfileInvalid(name, f"{field} is input,output or input,output,cache_read,cache_write")
    return dict(zip(ProfilePrice.__struct_fields__, amounts, strict=False))


def _parse_number(name: str, field: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ProfileInvalid(name, f"{field} takes a number")
    return found


# ---- the folder ----

FOLDER_VARIABLE: Final = "HOLDFAST_PROFILES"
"""Environment variable that names another folder."""
_SUFFIX: Final = ".json"
_DEFAULT: Final = ".default"  # no profile can be called so: names do not begin with a dot
_NEW_PREFIX: Final = ".new-"
_MAX_BYTES: Final = 256 * 1024
_MAX_NAME: Final = 200
"""Longest name, in bytes, as file systems count."""
_PATIENCE: Final = 5.0


def profiles_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of profiles: the one of the environment, or the user's configuration folder."""
    named = environ.get(FOLDER_VARIABLE, "")
    configured = environ.get("XDG_CONFIG_HOME", "")
    try:
        if named:
            return Path(named).expanduser().absolute()
        base = Path(configured) if configured.startswith("/") else Path.home() / ".config"
    except RuntimeError:
        raise NoProfilesFolder from None
    return base / "holdfast" / "profiles"


def check_profile_name(name: object) -> str:
    """Check a name, which becomes the name of a file."""
    found = check_name("profile", name)
    size = len(found.encode())
    if size > _MAX_NAME:
        raise InvalidId("profile", name, f"it has {size:,} bytes, the limit is {_MAX_NAME}")
    return found


class Profiles:
    """The profiles in one folder. Nothing is cached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        self._trust_folder()
        try:
            entries = [entry.name for entry in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        found: list[str] = []
        for entry in entries:
            if entry.endswith(_SUFFIX):
                with suppress(InvalidId):  # not a profile
                    found.append(check_profile_name(entry.removesuffix(_SUFFIX)))
        return sorted(found)

    def get(self, name: str) -> Profile:
        self._trust_folder()
        data = _read(self._file(name), name)
        if data is None:
            raise ProfileUnknown(name, self.names())
        return decode_profile(name, data)

    def default(self) -> str | None:
        """Return the name of the default profile, if there is one."""
        data = _read(self.folder / _DEFAULT, _DEFAULT)
        if data is None:
            return None
        self._trust_folder()
        try:
            return check_profile_name(data.decode().removesuffix("\n"))
        except (InvalidId, UnicodeError):
            raise ProfileInvalid(_DEFAULT, "it names no profile; 'holdfast profiles default NAME' names one") from None

    def save(self, name: str, profile: Profile) -> None:
        """Create or replace a profile durably."""
        self.change(name, lambda _: profile)

    def change(self, name: str, change: Callable[[Profile | None], Profile]) -> Profile:
        """Replace a profile by `change(profile)`, a new one by `change(None)`, under a lock."""
        path = self._file(name)
        with self._lock():
            data = _read(path, name)
            if data is None:  # on some file systems two names that differ only in case are one file
                twin = next((known for known in self.names() if known.casefold() == name.casefold()), None)
                if twin is not None:
                    raise ProfileInvalid(name, f"there is {twin!r}, which differs from it only in case")
            made = check_profile(name, change(None if data is None else decode_profile(name, data)))
            self._write(path, encode_profile(made))
        return made

    def remove(self, name: str) -> None:
        """Remove a profile, and the default if it was this one."""
        path = self._file(name)
        with self._lock():
            if not os.path.lexists(path):
                raise ProfileUnknown(name, self.names())
            with suppress(ProfileInvalid):
                if self.default() == name:
                    (self.folder / _DEFAULT).unlink()
            path.unlink()
            sync_folder(self.folder)

    def set_default(self, name: str | None) -> None:
        """Set the default profile; None: no default."""
        path = None if name is None else self._file(name)
        with self._lock():
            if path is None:
                (self.folder / _DEFAULT).unlink(missing_ok=True)
                sync_folder(self.folder)
            elif not path.exists():
                raise ProfileUnknown(str(name), self.names())
            else:
                self._write(self.folder / _DEFAULT, f"{name}\n".encode())

    def _file(self, name: str) -> Path:
        return self.folder / f"{check_profile_name(name)}{_SUFFIX}"

    def _trust_folder(self) -> None:
        with suppress(FileNotFoundError):
            _check_owner(self.folder, self.folder.stat(), "chmod 700")

    @contextmanager
    def _lock(self) -> Generator[None]:
        for parent in reversed([parent for parent in (self.folder, *self.folder.parents) if not parent.exists()]):
            with suppress(FileExistsError):
                parent.mkdir(mode=0o700)
            sync_folder(parent.parent)
        self._trust_folder()
        lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not lock_file(lock, _PATIENCE):
                raise ProfilesBusy(self.folder)
            for left in self.folder.glob(f"{_NEW_PREFIX}*"):  # of a killed writer; live ones wait for the lock
                left.unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)

    def _write(self, path: Path, data: bytes) -> None:
        new = self.folder / f"{_NEW_PREFIX}{secrets.token_hex(8)}"
        try:
            write_new_file(new, data)
            crash_point("profiles.written")
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        crash_point("profiles.renamed")
        sync_folder(self.folder)


def _read(path: Path, name: str) -> bytes | None:
    """Read a file; None if it does not exist. Raises `ProfilesUnsafe` if another user can write to it."""
    try:
        found, data = read_plain_file(path, _MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise ProfileInvalid(name, "it is no regular file")
    _check_owner(path, found, "chmod 600")
    if len(data) > _MAX_BYTES:
        raise ProfileInvalid(name, f"its file is larger than {_MAX_BYTES:,} bytes")
    return data


def _check_owner(path: Path, found: os.stat_result, remedy: str) -> None:
    if found.st_uid not in {os.geteuid(), 0}:
        raise ProfilesUnsafe(path, "it belongs to another user", f"name a folder of your own with {FOLDER_VARIABLE}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ProfilesUnsafe(path, "others may write to it", f"{remedy} makes it yours alone")


def missing_secrets(profile: Profile, environ: Mapping[str, str]) -> dict[str, SecretReference]:
    """Return the variables of a profile that are not set, with their references."""
    return {
        variable: parse_reference(reference)
        for variable, reference in profile.secrets.items()
        if not environ.get(variable, "").strip()
    }


def read_secret(reference: SecretReference, wanted_as: str, environ: Mapping[str, str]) -> str:
    """Read a secret. Raises `SecretMissing` if it does not exist or is empty."""
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


def _from_keyring(reference: SecretReference) -> str:
    try:
        keyring: Any = import_module("keyring")
    except ImportError:
        raise KeyringUnavailable(str(reference), "the package 'keyring' is not installed") from None
    failed = ""
    found: object = None
    try:
        found = keyring.get_password(reference.service, reference.name)
    except Exception as error:  # each keyring raises its own errors
        failed = type(error).__name__
    if failed:  # raised outside of the handler, because the keyring's own exception may hold secrets
        raise KeyringUnavailable(str(reference), f"the keyring failed with {failed}")
    return found if isinstance(found, str) else ""
