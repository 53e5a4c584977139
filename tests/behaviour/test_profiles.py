"""Profiles on the disk: whole or not at all, for their owner alone, and never the place of a secret."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import crashpoints
from holdfast.errors import InvalidId
from holdfast.profiles import (
    KeyringUnavailable,
    NoProfilesFolder,
    Profile,
    ProfileInvalid,
    Profiles,
    ProfilesUnsafe,
    ProfileUnknown,
    SecretMissing,
    SecretRefused,
    missing_secrets,
    parse_reference,
    profiles_folder,
    read_secret,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WORKER = """
import sys
from pathlib import Path
from holdfast.profiles import Profile, Profiles
from holdfast.testing.crashes import arm_from_environment
arm_from_environment()
Profiles(Path(sys.argv[1])).save("work", Profile(store="/new.db"))
"""


@pytest.fixture
def kept(tmp_path: Path) -> Profiles:
    return Profiles(tmp_path / "config" / "profiles")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- keeping ---------------------------------------------------------------------------------------------------------


def test_what_was_saved_is_found_again(kept: Profiles) -> None:
    kept.save("work", Profile(store="/a.db"))
    assert Profiles(kept.folder).get("work") == Profile(store="/a.db")
    assert kept.names() == ["work"]


def test_looking_makes_no_folder(kept: Profiles) -> None:
    assert (kept.names(), kept.default()) == ([], None)
    with pytest.raises(ProfileUnknown, match="there are none"):
        kept.get("work")
    assert not kept.folder.exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_and_folders_are_for_their_owner_alone(kept: Profiles, umask: int) -> None:
    before = os.umask(umask)
    try:
        kept.save("work", Profile())
        kept.set_default("work")
    finally:
        os.umask(before)
    assert (mode(kept.folder), mode(kept.folder.parent)) == (0o700, 0o700)
    assert {mode(path) for path in kept.folder.iterdir()} == {0o600}


def test_a_file_that_others_could_read_is_theirs_no_more_when_it_is_written(kept: Profiles) -> None:
    kept.save("work", Profile())
    (kept.folder / "work.json").chmod(0o644)
    kept.save("work", Profile(store="/a.db"))
    assert mode(kept.folder / "work.json") == 0o600


NAMES = ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "end.", " x", "x ", "a\nb", "a\x00b", "x" * 201, "e\u0301",
         "\u00e9" * 101, "\ud800", "\u202ex", 7, None]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_name_that_can_be_no_file_name_is_refused_everywhere(kept: Profiles, name: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: kept.get(name),
        lambda: kept.remove(name),
        lambda: kept.save(name, Profile()),
    ]
    for call in calls:
        with pytest.raises(InvalidId):
            call()
    if name is not None:
        with pytest.raises(InvalidId):
            kept.set_default(name)
    assert not kept.folder.exists()


def test_the_longest_name_can_be_kept(kept: Profiles) -> None:
    for name in ("x" * 200, "\u00e9" * 100):
        kept.save(name, Profile())
        assert kept.get(name) == Profile()


def test_a_name_that_differs_only_in_case_is_refused(kept: Profiles) -> None:
    kept.save("Work", Profile())
    with pytest.raises(ProfileInvalid, match="only in case"):
        kept.save("work", Profile())
    kept.save("Work", Profile(store="/a.db"))


def test_files_of_somebody_else_are_no_profiles(kept: Profiles) -> None:
    kept.save("work", Profile())
    for name in ("notes.txt", ".x.json", "work.json~"):
        (kept.folder / name).write_text("{}", encoding="utf-8")
    assert kept.names() == ["work"]


def test_a_profile_is_removed(kept: Profiles) -> None:
    kept.save("work", Profile())
    kept.remove("work")
    assert kept.names() == []
    with pytest.raises(ProfileUnknown):
        kept.remove("work")


def test_a_broken_profile_can_be_removed_and_hides_no_other(kept: Profiles) -> None:
    kept.save("good", Profile())
    (kept.folder / "bad.json").write_text("{", encoding="utf-8")
    with pytest.raises(ProfileInvalid, match="bad"):
        kept.get("bad")
    assert kept.get("good") == Profile()
    kept.remove("bad")
    assert kept.names() == ["good"]


# ---- the default -----------------------------------------------------------------------------------------------------


def test_the_default_is_named_changed_and_taken_away(kept: Profiles) -> None:
    kept.save("a", Profile())
    kept.save("b", Profile())
    for name in ("a", "b", None):
        kept.set_default(name)
        assert kept.default() == name


def test_only_a_profile_that_is_there_can_be_the_default(kept: Profiles) -> None:
    with pytest.raises(ProfileUnknown):
        kept.set_default("nobody")


def test_a_default_that_is_removed_is_the_default_no_more(kept: Profiles) -> None:
    kept.save("a", Profile())
    kept.set_default("a")
    kept.remove("a")
    assert kept.default() is None


@pytest.mark.parametrize("data", [b"", b"..\n", b"../../x", b"\xff", b"a\nb\n"])
def test_a_damaged_default_is_refused(kept: Profiles, data: bytes) -> None:
    kept.save("a", Profile())
    (kept.folder / ".default").write_bytes(data)
    with pytest.raises(ProfileInvalid):
        kept.default()
    kept.set_default("a")
    assert kept.default() == "a"


# ---- whole or not at all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("point", "store"), [("profiles.written:1", "/old.db"), ("profiles.renamed:1", "/new.db")])
def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_profile(
    kept: Profiles, point: str, store: str
) -> None:
    kept.save("work", Profile(store="/old.db"))
    killed = subprocess.run(
        [sys.executable, "-c", WORKER, str(kept.folder)],
        env={**os.environ, "HOLDFAST_CRASH_AT": point},
        check=False,
        timeout=20,
    )
    assert killed.returncode == -9
    assert kept.get("work").store == store
    assert kept.names() == ["work"]


def test_what_a_killed_writer_left_is_removed_by_the_next(kept: Profiles) -> None:
    kept.save("work", Profile())
    (kept.folder / ".new-0123").write_text("half", encoding="utf-8")
    kept.save("work", Profile(store="/a.db"))
    assert sorted(path.name for path in kept.folder.iterdir()) == [".lock", "work.json"]


def test_a_write_that_fails_leaves_the_old_profile_and_nothing_else(kept: Profiles) -> None:
    kept.save("work", Profile(store="/old.db"))

    def fail(name: str) -> None:
        if name == "profiles.written":
            raise OSError(28, "no space")

    crashpoints.arm(fail)
    try:
        with pytest.raises(OSError, match="no space"):
            kept.save("work", Profile(store="/new.db"))
    finally:
        crashpoints.arm(None)
    assert kept.get("work").store == "/old.db"
    assert sorted(path.name for path in kept.folder.iterdir()) == [".lock", "work.json"]


def test_a_change_that_is_refused_changes_nothing(kept: Profiles) -> None:
    kept.save("work", Profile(store="/old.db"))
    with pytest.raises(SecretRefused):
        kept.save("work", Profile(secrets={"KEY": "sk-ant-api03-abcdefgh12345678"}))
    assert kept.get("work") == Profile(store="/old.db")


def test_changes_from_many_threads_are_all_kept(kept: Profiles) -> None:
    def add(number: int) -> None:
        def with_one_more(found: Profile | None) -> Profile:
            before = {} if found is None else found.secrets
            return Profile(secrets={**before, f"V{number}": "env:X"})

        kept.change("work", with_one_more)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept.get("work").secrets) == 16


# ---- who may have written it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_obeyed(kept: Profiles, bits: int) -> None:
    kept.save("work", Profile())
    (kept.folder / "work.json").chmod(bits)
    with pytest.raises(ProfilesUnsafe, match="chmod 600"):
        kept.get("work")


def test_a_default_in_a_folder_that_others_may_write_is_not_obeyed(kept: Profiles) -> None:
    kept.save("work", Profile())
    kept.set_default("work")
    kept.folder.chmod(0o777)
    with pytest.raises(ProfilesUnsafe, match="chmod 700"):
        kept.default()


def test_a_folder_that_others_may_write_is_not_obeyed(kept: Profiles) -> None:
    kept.save("work", Profile())
    kept.folder.chmod(0o777)
    for call in (lambda: kept.get("work"), kept.names, lambda: kept.save("work", Profile())):
        with pytest.raises(ProfilesUnsafe, match="chmod 700"):
            call()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_obeyed(kept: Profiles) -> None:
    kept.save("work", Profile())
    os.chown(kept.folder / "work.json", 12_345, 12_345)
    with pytest.raises(ProfilesUnsafe, match="another user"):
        kept.get("work")


def test_a_pipe_is_no_profile_and_holds_nobody_up(kept: Profiles) -> None:
    kept.save("work", Profile())
    os.mkfifo(kept.folder / "pipe.json", 0o600)
    with pytest.raises(ProfileInvalid, match="regular"):
        kept.get("pipe")


def test_a_folder_is_no_profile(kept: Profiles) -> None:
    kept.save("work", Profile())
    (kept.folder / "folder.json").mkdir()
    with pytest.raises(ProfileInvalid, match="regular"):
        kept.get("folder")


def test_a_file_that_is_too_large_is_refused(kept: Profiles) -> None:
    kept.save("work", Profile())
    (kept.folder / "work.json").write_bytes(b" " * 300_000)
    with pytest.raises(ProfileInvalid, match="larger"):
        kept.get("work")


# ---- where, and what they refer to -----------------------------------------------------------------------------------


def test_the_folder_is_the_one_that_is_named_or_the_users_own(tmp_path: Path) -> None:
    assert profiles_folder({"HOLDFAST_PROFILES": str(tmp_path)}) == tmp_path
    assert profiles_folder({"XDG_CONFIG_HOME": "/c"}) == Path("/c/holdfast/profiles")
    for relative in ("", "c"):
        assert profiles_folder({"XDG_CONFIG_HOME": relative}) == Path.home() / ".config/holdfast/profiles"


def test_without_a_home_there_is_no_folder() -> None:
    with pytest.raises(NoProfilesFolder):
        profiles_folder({"HOLDFAST_PROFILES": "~nobody-of-this-name/x"})


def test_a_variable_that_is_set_is_not_asked_for() -> None:
    profile = Profile(secrets={"A": "env:X", "B": "env:Y"})
    assert list(missing_secrets(profile, {"A": "mine", "B": " "})) == ["B"]


def test_a_secret_is_taken_from_the_environment() -> None:
    assert read_secret(parse_reference("env:MINE"), "KEY", {"MINE": "hunter2"}) == "hunter2"


@pytest.mark.parametrize("environ", [{}, {"MINE": ""}, {"MINE": "  "}])
def test_a_variable_that_is_not_set_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(SecretMissing, match="KEY is to be taken from env:MINE"):
        read_secret(parse_reference("env:MINE"), "KEY", environ)


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keyring package that answers as its file says."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "keyring", raising=False)
    return tmp_path / "keyring.py"


def test_a_secret_is_taken_from_the_keyring(keyring: Path) -> None:
    keyring.write_text("def get_password(service, name): return f'{service} of {name}'", encoding="utf-8")
    assert read_secret(parse_reference("keyring:holdfast/work"), "KEY", {}) == "holdfast of work"


def test_an_entry_that_the_keyring_does_not_have_is_named(keyring: Path) -> None:
    keyring.write_text("def get_password(service, name): return None", encoding="utf-8")
    with pytest.raises(SecretMissing, match="keyring:holdfast/work"):
        read_secret(parse_reference("keyring:holdfast/work"), "KEY", {})


@pytest.mark.parametrize("said", ["'a\\0b'", "'\\ud800'"])
def test_what_can_be_no_variable_is_refused(keyring: Path, said: str) -> None:
    keyring.write_text(f"def get_password(service, name): return {said}", encoding="utf-8")
    with pytest.raises(KeyringUnavailable, match="no text"):
        read_secret(parse_reference("keyring:holdfast/work"), "KEY", {})


def test_a_keyring_that_fails_is_named_without_what_it_says(keyring: Path) -> None:
    keyring.write_text("def get_password(service, name): raise RuntimeError('hunter2')", encoding="utf-8")
    with pytest.raises(KeyringUnavailable, match="RuntimeError") as caught:
        read_secret(parse_reference("keyring:holdfast/work"), "KEY", {})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


def test_without_the_package_the_keyring_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(KeyringUnavailable, match="not installed"):
        read_secret(parse_reference("keyring:holdfast/work"), "KEY", {})
