"""Seals: a row that another program has written is never used, and a store without its key says what to do."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from msgspec import Raw, json
from msgspec.structs import replace
from tests.behaviour.approving import Shop, parked, sent
from tests.behaviour.background import SESSION
from tests.behaviour.talk import until
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.errors import (
    HoldfastError,
    JournalCorrupt,
    JournalQuarantined,
    RuleCorrupt,
    StoreKeyMissing,
    StoreKeyWrong,
    StoreRefused,
    StoreUntrusted,
)
from holdfast.policy.approvals import Approved, read_question
from holdfast.records import Done, EffectRequest, Intended, encode
from holdfast.store.contract import Wait
from holdfast.store.paths import key_file
from holdfast.store.sqlite.files import connect
from holdfast.store.sqlite.health import examine
from holdfast.store.sqlite.key import Seal, keep_key, renew_key
from holdfast.store.sqlite.rows import checksum, salt_of, wait_crc
from holdfast.store.sqlite.tables import rule_crc
from holdfast.store.waits import StoredRule
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.records import Record
    from holdfast.store import Store


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A store with two sessions that ask for approval, and a stored rule."""
    file = tmp_path / "shop.db"
    async with hf.open_store(file) as store:
        for session in ("edited", "other"):
            await store.open_journal(session, "session", "clerk")
            await store.open_wait(session, "may I", kind="approval", body=b"refund 900")
        await store.add_rule("clerk", '{"allow": "read_file"}', by="ops")
    return file


def tamper(path: Path, sql: str, *values: Any) -> None:
    db: Any = apsw.Connection(str(path))
    db.execute(sql, values)
    db.close()


async def forge_answer(path: Path) -> None:
    """Resolve an approval as a program would that has the file: with a right checksum."""
    async with hf.open_store(path) as store:
        (wait,) = await store.waits("edited")
    forged = replace(wait, state="resolved", payload=b'{"approved": true}')
    tamper(
        path,
        "UPDATE waits SET state = ?, payload = ?, crc = ? WHERE crc = ?",
        *(forged.state, forged.payload, wait_crc(forged), wait_crc(wait)),
    )


def content(path: Path) -> bytes:
    return path.read_bytes()


async def asked(store: Store) -> list[str]:
    return [wait.journal for wait in await store.open_waits("approval")]


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_the_seals_of_rows_are_those_of_the_stores_that_exist() -> None:
    seal = Seal(bytes(range(32)), bytes(range(16)))
    asked = Wait("j", "r1/a", "open", 17, b"1", False, "approval", b'{"q":1}', 5, 9)
    assert seal.of(asked).hex() == "ab0d19965059010353b4403c7b0f37b0"
    assert seal.of(Wait("j", "n", "revoked")).hex() == "73b6b77530d3ed02bc12562472b62bb2"
    rule = StoredRule(3, "clerk", "{}", "d", "me", 5, "you", 6)
    assert seal.of(rule).hex() == "7b65e6bca11502a5ca346344318e9f43"


async def test_an_answer_that_another_program_wrote_is_not_used_and_its_session_is_quarantined(path: Path) -> None:
    await forge_answer(path)
    async with hf.open_store(path) as store:
        with pytest.raises(JournalCorrupt, match="another program has written it"):
            await store.wait("edited", "may I")
        assert (await store.journal("edited")).quarantine is not None
        with pytest.raises(JournalQuarantined):
            await store.claim("edited")


async def test_other_sessions_go_on_when_one_row_was_edited(path: Path) -> None:
    await forge_answer(path)
    async with hf.open_store(path) as store:
        assert await asked(store) == ["other"]
        assert (await store.answer_wait("other", "may I", "yes")).won


async def test_a_question_that_another_program_changed_can_not_be_answered(path: Path) -> None:
    async with hf.open_store(path) as store:
        (wait,) = await store.waits("edited")
    changed = replace(wait, body=b"refund 1")
    sql = "UPDATE waits SET body = ?, crc = ? WHERE crc = ?"
    tamper(path, sql, changed.body, wait_crc(changed), wait_crc(wait))
    async with hf.open_store(path) as store:
        with pytest.raises(HoldfastError):
            await store.answer_wait("edited", "may I", "yes")
        assert await asked(store) == ["other"]


async def test_a_row_of_another_session_does_not_pass_for_an_answer(path: Path) -> None:
    async with hf.open_store(path) as store:
        await store.answer_wait("other", "may I", "yes")
        (answered,) = await store.waits("other")
    moved = replace(answered, journal="edited")
    tamper(
        path,
        "UPDATE waits SET (state, payload, crc, mac) = (SELECT state, payload, ?, mac FROM waits w JOIN journals j"
        " ON j.no = w.journal AND j.id = 'other') WHERE journal = (SELECT no FROM journals WHERE id = 'edited')",
        wait_crc(moved),
    )
    async with hf.open_store(path) as store:
        with pytest.raises(JournalCorrupt, match="seal"):
            await store.wait("edited", "may I")


async def test_a_rule_that_another_program_added_allows_nothing(path: Path) -> None:
    async with hf.open_store(path) as store:
        (rule,) = await store.rules("clerk")
    forged = StoredRule(7, "other", rule.body, rule.digest, "ops", 1)
    tamper(
        path,
        "INSERT INTO rules (id, agent, body, digest, author, at, crc) VALUES (?, ?, ?, ?, ?, ?, ?)",
        *(forged.id, forged.agent, forged.body, forged.digest, forged.by, forged.at, rule_crc(forged)),
    )
    async with hf.open_store(path) as store:
        with pytest.raises(RuleCorrupt, match="seal"):
            await store.rules("other")
        assert [found.id for found in await store.rules("clerk")] == [1]
        await store.remove_rule(7, by="ops")
        assert await store.rules("other") == []


async def test_a_rule_that_was_removed_does_not_come_back_by_an_edit(path: Path) -> None:
    async with hf.open_store(path) as store:
        (rule,) = await store.rules("clerk")
        await store.remove_rule(1, by="ops")
    tamper(path, "UPDATE rules SET removed_by = NULL, removed_at = NULL, crc = ?", rule_crc(rule))
    async with hf.open_store(path) as store:
        with pytest.raises(RuleCorrupt):
            await store.rules("clerk")


async def test_the_doctor_names_the_rows_that_another_program_wrote(path: Path) -> None:
    await forge_answer(path)
    tamper(path, "UPDATE rules SET mac = zeroblob(16)")
    found = examine(path)
    assert [line for line in found.problems if "seal" in line] == [
        "checksum: edited/wait may I: the wait does not match its checksum or its seal",
        "checksum: rule 1: the rule does not match its checksum or its seal",
    ]


# ---- answers in a journal --------------------------------------------------------------------------------------------


def forge_record(path: Path, record: Record) -> None:
    """Append to the journal as a program would that has the file, and have the session looked at again."""
    db: Any = apsw.Connection(str(path))
    no, seq = db.execute("SELECT no, head + 1 FROM journals WHERE id = ?", (SESSION,)).fetchone()
    (epoch,) = db.execute("SELECT max(epoch) FROM records WHERE journal = ?", (no,)).fetchone()
    body = encode(record)
    db.execute(
        "INSERT INTO records (journal, seq, epoch, crc, body) VALUES (?, ?, ?, ?, ?)",
        (no, seq, epoch, checksum(salt_of(SESSION), seq, epoch, body), body),
    )
    db.execute("UPDATE journals SET head = head + 1, wakes = wakes + 1 WHERE no = ?", (no,))
    db.close()


async def asked_about(path: Path, shop: Shop, agent: hf.Agent) -> Wait:
    """The wait in which a person is asked about the one call of a session."""
    async with hf.open(path, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await parked(runtime)
        assert shop.done == []
        return (await runtime.store.open_waits("approval"))[0]


def approval_of(wait: Wait) -> Done:
    """The record that says that somebody has approved it."""
    question = read_question(wait.body or b"")
    assert question is not None
    return Done(at=wait.at + 1, key=wait.name, value=Raw(json.encode(Approved(question.digest, "boss"))))


async def assert_quarantined(path: Path, shop: Shop, agent: hf.Agent) -> None:
    """The session is taken out of use, its call is not made, and another session goes on."""
    async with hf.open(path, agents=[agent]) as runtime:

        async def quarantined() -> bool:
            return (await runtime.store.journal(SESSION)).quarantine is not None

        await until(quarantined)
        assert "another program has written that" in ((await runtime.store.journal(SESSION)).quarantine or "")
        assert shop.done == []
        await sent(runtime, agent, session="another")
        await until(runtime.approvals)


async def test_an_approval_that_another_program_wrote_into_the_journal_is_not_used(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "shop.db"
    agent = shop.agent()
    wait = await asked_about(path, shop, agent)
    forge_record(path, approval_of(wait))
    tamper(path, "DELETE FROM waits")
    await assert_quarantined(path, shop, agent)


async def test_an_approval_in_the_journal_does_not_count_where_a_person_denied_the_call(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "shop.db"
    agent = shop.agent()
    wait = await asked_about(path, shop, agent)
    async with hf.open(path, agents=[agent], drive=False) as runtime:
        (approval,) = await runtime.approvals()
        await runtime.deny(approval.id)
    forge_record(path, approval_of(wait))
    await assert_quarantined(path, shop, agent)


async def test_a_call_that_counts_as_begun_while_a_person_is_asked_about_it_is_not_made(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "shop.db"
    agent = shop.agent(tools=[shop.refund(idempotent=True)])
    wait = await asked_about(path, shop, agent)
    question = read_question(wait.body or b"")
    assert question is not None
    said = {"order": "7", "cents": 900}
    content = digest_of_bytes("call", canonical_json(["refund", said]))
    forge_record(path, Intended(at=wait.at + 1, key=question.effect, ask=EffectRequest("tool_call", "refund", content)))
    tamper(path, "DELETE FROM waits")
    await assert_quarantined(path, shop, agent)


async def test_an_approval_that_a_person_gave_while_nobody_worked_is_used(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "shop.db"
    agent = shop.agent()
    await asked_about(path, shop, agent)
    async with hf.open(path, agents=[agent], drive=False) as runtime:
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)
    async with hf.open(path, agents=[agent]):

        async def made() -> bool:
            return shop.done == [("7", 900)]

        await until(made)


# ---- the key ---------------------------------------------------------------------------------------------------------


async def test_the_key_is_in_a_private_file_beside_the_store_and_not_in_the_store(path: Path) -> None:
    key = key_file(path)
    assert key.stat().st_mode & 0o777 == 0o600
    told = bytes.fromhex(content(key).decode())
    assert len(told) == 32
    assert told not in content(path)


async def test_a_wait_token_can_not_be_made_from_what_the_store_file_holds(path: Path) -> None:
    async with hf.open_store(path) as store:
        secret = store._backend.secret  # pyright: ignore[reportPrivateUsage]  # what must not be there
    assert secret not in content(path)


async def test_a_store_without_its_key_is_refused_untouched_and_opens_when_it_is_back(path: Path) -> None:
    key = key_file(path)
    key.rename(path.parent / "kept")
    before = content(path)
    with pytest.raises(StoreKeyMissing, match="put it back, or set HOLDFAST_STORE_KEY") as raised:
        async with hf.open_store(path):
            pass
    assert raised.value.key == key
    assert content(path) == before
    (path.parent / "kept").rename(key)
    async with hf.open_store(path) as store:
        assert await asked(store) == ["other", "edited"]


async def test_a_store_with_the_key_of_another_one_is_refused(path: Path, tmp_path: Path) -> None:
    async with hf.open_store(tmp_path / "another.db"):
        pass
    shutil.copy(key_file(tmp_path / "another.db"), key_file(path))
    with pytest.raises(StoreKeyWrong, match="the key of another store"):
        async with hf.open_store(path):
            pass


async def test_a_copy_with_its_key_opens_elsewhere(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (path, key_file(path)):
        shutil.copy(file, copy)
    async with hf.open_store(copy / path.name) as store:
        assert await asked(store) == ["other", "edited"]


async def test_the_key_may_come_from_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_KEY", "ab" * 32)
    async with hf.open_store(tmp_path / "s.db") as store:
        await store.open_journal("j")
        await store.open_wait("j", "w")
        token = store.wait_token("j", "w")
    assert not key_file(tmp_path / "s.db").exists()
    monkeypatch.setenv("HOLDFAST_STORE_KEY", "cd" * 32)
    with pytest.raises(StoreKeyWrong, match="HOLDFAST_STORE_KEY has another key"):
        async with hf.open_store(tmp_path / "s.db"):
            pass
    monkeypatch.setenv("HOLDFAST_STORE_KEY", "ab" * 32)
    async with hf.open_store(tmp_path / "s.db") as store:
        assert store.wait_token("j", "w") == token


@pytest.mark.parametrize("text", ["short", "zz" * 32, "ab" * 31])
async def test_a_variable_that_holds_no_key_is_refused(tmp_path: Path, monkeypatch: Any, text: str) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_KEY", text)
    with pytest.raises(StoreRefused, match="64 hexadecimal digits"):
        async with hf.open_store(tmp_path / "s.db"):
            pass


async def test_a_key_file_that_others_can_read_is_refused_with_the_command_that_repairs_it(path: Path) -> None:
    key_file(path).chmod(0o640)
    with pytest.raises(StoreUntrusted) as raised:
        async with hf.open_store(path):
            pass
    assert raised.value.remedy == f"chmod 600 {key_file(path)}"


async def test_a_link_in_the_place_of_the_key_is_refused(path: Path) -> None:
    key_file(path).rename(path.parent / "kept")
    key_file(path).symlink_to(path.parent / "kept")
    with pytest.raises(StoreUntrusted, match="no regular file"):
        async with hf.open_store(path):
            pass


async def test_a_store_that_is_opened_by_a_link_has_one_key(path: Path) -> None:
    (path.parent / "link.db").symlink_to(path)
    async with hf.open_store(path.parent / "link.db") as store:
        assert await asked(store) == ["other", "edited"]
    assert sorted(os.listdir(path.parent)) == ["link.db", "shop.db", "shop.db.key"]


def set_back(path: Path) -> None:
    """Make a store look as if it was of a schema without seals."""
    tamper(path, "ALTER TABLE waits DROP COLUMN mac")
    tamper(path, "ALTER TABLE rules DROP COLUMN mac")
    tamper(path, "ALTER TABLE notifications DROP COLUMN payload")
    tamper(path, "DROP TABLE folds; ALTER TABLE memories DROP COLUMN words")
    for column in ("is_json", "summary", "metadata"):
        tamper(path, f"ALTER TABLE memories DROP COLUMN {column}; ALTER TABLE memory_changes DROP COLUMN {column}")
    tamper(path, "DROP INDEX records_handed")
    tamper(path, "ALTER TABLE inputs DROP COLUMN head")
    tamper(path, "DELETE FROM meta WHERE key = 'key_check'")
    tamper(path, "DROP TABLE forgotten_spending; DROP TABLE forgotten_ids; DROP INDEX tombstones_by_session")
    tamper(path, "PRAGMA user_version = 5")


async def test_a_store_that_was_set_back_to_an_older_schema_is_not_sealed_again(path: Path) -> None:
    await forge_answer(path)
    set_back(path)
    with pytest.raises(StoreKeyWrong, match="set back") as raised:
        async with hf.open_store(path):
            pass
    assert "holdfast doctor --new-key" in raised.value.remedy


async def test_a_new_key_for_a_store_that_was_set_back_drops_what_may_be_forged(path: Path) -> None:
    await forge_answer(path)
    set_back(path)
    tamper(path, "INSERT INTO meta (key, value) VALUES ('secret', ?)", b"k" * 32)
    before = content(key_file(path))
    renew_key(path, 5)
    async with hf.open_store(path) as store:
        assert await asked(store) == ["other", "edited"]
        assert await store.rules("clerk") == []
        assert store._backend.secret != b"k" * 32  # pyright: ignore[reportPrivateUsage]  # what must not be used
    assert content(key_file(path).with_name("shop.db.key.away")) == before
    assert examine(path).problems == ()


async def test_a_store_that_was_set_back_under_a_key_of_the_environment_keeps_no_answer_rule_or_token(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_KEY", content(key_file(path)).decode().strip())
    key_file(path).unlink()
    await forge_answer(path)
    set_back(path)
    tamper(path, "INSERT INTO meta (key, value) VALUES ('secret', ?)", b"k" * 32)
    async with hf.open_store(path) as store:
        assert await asked(store) == ["other", "edited"]
        assert await store.rules("clerk") == []
        assert (await store.rule_history())[0].removed_by == "upgrade under HOLDFAST_STORE_KEY"
        assert store._backend.secret != b"k" * 32  # pyright: ignore[reportPrivateUsage]  # what must not be used


async def test_a_variable_beside_a_key_file_that_fits_is_to_be_unset(path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_KEY", "ab" * 32)
    with pytest.raises(StoreKeyWrong, match=f"{key_file(path)} fits; unset HOLDFAST_STORE_KEY"):
        async with hf.open_store(path):
            pass


# ---- several processes -----------------------------------------------------------------------------------------------


def leave_new_key(path: Path, text: str = "cd" * 32) -> Path:
    """What a process leaves that was killed before it committed the store it made."""
    left = key_file(path).with_name(f"{key_file(path).name}.new")
    left.touch(0o600)
    left.write_text(text)
    return left


async def test_a_new_key_of_a_killed_process_never_displaces_the_key_of_the_store(path: Path) -> None:
    leave_new_key(path)
    os.remove(path)  # noqa: PTH107
    before = content(key_file(path))
    for _ in range(2):  # the first makes the store, with the key that is there
        async with hf.open_store(path):
            pass
    assert content(key_file(path)) == before


@pytest.mark.parametrize("text", ["cd" * 32, ""])
async def test_a_new_key_of_a_killed_process_gets_no_name_where_the_environment_has_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_KEY", "ab" * 32)
    leave_new_key(tmp_path / "s.db", text)
    async with hf.open_store(tmp_path / "s.db"):
        pass
    assert not key_file(tmp_path / "s.db").exists()


async def test_a_store_opens_while_another_process_gives_its_key_the_name(path: Path, monkeypatch: Any) -> None:
    key = key_file(path)
    new = key.rename(key.with_name(f"{key.name}.new"))
    opened = os.open

    def slow(file: Any, *arguments: Any, **more: Any) -> int:
        try:
            return opened(file, *arguments, **more)
        finally:
            if file == key and new.exists():
                new.rename(key)

    monkeypatch.setattr(os, "open", slow)
    async with hf.open_store(path) as store:
        assert await asked(store) == ["other", "edited"]


async def test_a_key_that_another_process_is_giving_its_name_is_not_put_aside(path: Path, monkeypatch: Any) -> None:
    """Two processes name a new key at once: each step of one comes between two of the other."""
    key = key_file(path)
    key.rename(key.with_name(f"{key.name}.new"))
    flock = fcntl.flock
    barrier = threading.Barrier(2, timeout=PATIENCE)

    def together(handle: int, how: int) -> None:
        barrier.wait()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", together)
    db: Any = connect(path, apsw.SQLITE_OPEN_READONLY)
    other: Any = connect(path, apsw.SQLITE_OPEN_READONLY)
    await asyncio.gather(asyncio.to_thread(keep_key, path, db), asyncio.to_thread(keep_key, path, other))
    db.close()
    other.close()
    assert [file.name for file in path.parent.glob("*.key*")] == ["shop.db.key"]


# ---- a key that is lost ----------------------------------------------------------------------------------------------


async def test_a_new_key_drops_rules_and_answers_that_nobody_used(path: Path) -> None:
    async with hf.open_store(path) as store:
        await store.answer_wait("other", "may I", "yes")
    key_file(path).unlink()
    renew_key(path, 5)
    async with hf.open_store(path) as store:
        assert await asked(store) == ["other", "edited"]
        assert await store.rules("clerk") == []
        assert (await store.rule_history())[0].removed_at == 5
    assert examine(path).problems == ()


async def lose_key_after_forging(path: Path, **columns: Any) -> None:
    """Forge an answer, with other values in some of its columns too, and replace the key that is lost."""
    async with hf.open_store(path) as store:
        (wait,) = await store.waits("edited")
    forged = replace(wait, state="resolved", payload=b'{"approved": true}', **columns)
    tamper(
        path,
        "UPDATE waits SET state = ?, payload = ?, kind = ?, consumed = ?, opened = ?, crc = ? WHERE crc = ?",
        *(forged.state, forged.payload, forged.kind, forged.consumed, int(forged.opened)),
        *(wait_crc(forged), wait_crc(wait)),
    )
    key_file(path).unlink()
    renew_key(path, 5)


@pytest.mark.parametrize("columns", [{"kind": None}, {"opened": False}], ids=["kind", "opened"])
async def test_a_new_key_drops_a_forged_answer_that_is_not_marked_as_one(path: Path, columns: Any) -> None:
    await lose_key_after_forging(path, **columns)
    async with hf.open_store(path) as store:
        assert await store.wait("edited", "may I") is None
        assert (await store.open_wait("edited", "may I", kind="approval", body=b"refund 900")).state == "open"


async def test_a_new_key_opens_a_question_again_whose_forged_answer_no_record_has_used(path: Path) -> None:
    await lose_key_after_forging(path, consumed=1)
    async with hf.open_store(path) as store:
        assert await asked(store) == ["other", "edited"]
        assert (await store.answer_wait("edited", "may I", "yes")).won


async def test_a_new_key_does_not_ask_again_what_was_answered_and_used(tmp_path: Path) -> None:
    path, paid = tmp_path / "shop.db", list[int]()

    @hf.tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    def clerk() -> hf.Agent:
        return hf.Agent(
            "clerk", model=ScriptedModel([call("pay", amount=5), text("ok")]), tools=[pay], policy=[hf.ask("*")]
        )

    async with hf.open(path, agents=[clerk()]) as runtime:
        turn = await runtime.session("s", agent="clerk").send("go")
        async with asyncio.timeout(PATIENCE):
            while not (shown := await runtime.approvals()):  # a condition in the store
                await asyncio.sleep(0.005)
        await runtime.approve(shown[0].id)
        assert (await turn.outcome()).status == "completed"
        (before,) = [wait for wait in await runtime.store.waits("s") if wait.kind == "approval"]
    key_file(path).unlink()
    renew_key(path, 5)
    async with hf.open(path, agents=[clerk()]) as runtime:
        assert await runtime.approvals() == []
        assert before in await runtime.store.waits("s")
    assert paid == [5]
    assert examine(path).problems == ()


async def test_a_new_key_leaves_the_signals_that_a_process_took_and_drops_the_others(tmp_path: Path) -> None:
    path, taken = tmp_path / "shop.db", asyncio.Event()

    @hf.process
    async def hears(ctx: hf.ProcessContext) -> list[Any]:
        first = await ctx.wait("said")
        taken.set()
        await ctx.wait("go")
        return [first, await ctx.wait("said")]

    async with hf.open(path, processes=[hears]) as runtime:
        process = await runtime.start(hears, id="p")
        await process.signal("said", 1, key="first")
        await asyncio.wait_for(taken.wait(), PATIENCE)
        await process.signal("said", 2, key="second")
    key_file(path).unlink()
    renew_key(path, 5)
    async with hf.open(path, processes=[hears]) as runtime:
        process = runtime.processes.handle("p")
        assert await process.signal("said", 1, key="first") == "already_signalled"
        assert await process.signal("said", 3, key="second") == "signalled"
        await process.signal("go", None)
        assert await process.result(timeout=PATIENCE) == [1, 3]
    assert examine(path).problems == ()


async def test_a_key_is_not_replaced_while_the_store_is_open(path: Path) -> None:
    async with hf.open_store(path) as store:
        key_file(path).rename(path.parent / "kept")
        with pytest.raises(StoreRefused, match=rf"process {os.getpid()} \(\w+\) has it open"):
            renew_key(path, 5)
        assert (await store.answer_wait("other", "may I", "yes")).won
    (path.parent / "kept").rename(key_file(path))
    async with hf.open_store(path) as store:
        assert await asked(store) == ["edited"]


async def test_a_key_that_fits_is_not_replaced(path: Path) -> None:
    before = content(key_file(path))
    with pytest.raises(StoreRefused, match="its key is there"):
        renew_key(path, 5)
    assert content(key_file(path)) == before
