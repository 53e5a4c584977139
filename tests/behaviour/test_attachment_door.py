"""`runtime.attachments`: files put once, read by those who may, and collected when nobody needs them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.errors import PayloadTooLarge
from holdfast.testing import ManualClock, ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path

PICTURE = b"\x89PNG\r\n\x1a\n and the rest"
DAYS = 86_400_000


def _agent(*tools: hf.Tool[..., Any], script: Any = None) -> tuple[hf.Agent, ScriptedModel]:
    model = ScriptedModel(script or (lambda _: text("Seen.")))
    return hf.Agent("a", model=model, tools=list(tools), policy=[hf.allow("*")]), model


# ---- putting and sending ---------------------------------------------------------------------------------------------


async def test_what_was_put_is_there_in_another_process(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db") as runtime:
        put = await runtime.attachments.put(PICTURE, name="cat.png", session="s")
    assert (put.media_type, put.size, put.name) == ("image/png", len(PICTURE), "cat.png")
    async with hf.open(tmp_path / "s.db") as runtime:
        assert await runtime.attachments.get(put) == PICTURE
        assert await runtime.attachments.get(put.digest, session="s") == PICTURE
        assert await runtime.attachments.of("s") == [put]


async def test_a_file_is_put_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("a,b\n")
    async with hf.open(None) as runtime:
        put = await runtime.attachments.put(tmp_path / "list.csv")
        assert (put.media_type, put.name) == ("text/csv", "list.csv")
        assert await runtime.attachments.put(str(tmp_path / "list.csv")) == put


async def test_the_same_bytes_are_put_once() -> None:
    async with hf.open(None) as runtime:
        first = await runtime.attachments.put(PICTURE, name="cat.png")
        assert await runtime.attachments.put(PICTURE, name="dog.png") == first
        assert await runtime.attachments.of() == [first]


async def test_bytes_that_are_not_what_they_are_said_to_be_are_refused_and_not_kept() -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.errors.MediaTypeMismatch, match="image/png"):
            await runtime.attachments.put(PICTURE, media_type="application/pdf")
        assert await runtime.attachments.of() == []


@pytest.mark.parametrize("session", [None, "s"], ids=["for nobody", "for the session"])
async def test_what_was_put_can_be_sent(session: str | None) -> None:
    agent, model = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        put = await runtime.attachments.put(PICTURE, session=session)
        turn = await runtime.session("s", agent=agent).send(["What is this?", put], key="k")
        again = await runtime.session("s", agent=agent).send(["What is this?", put], key="k")
        assert again.id == turn.id
        await turn.outcome(timeout=SOON)
        assert model.requests[-1].files[put.digest] == PICTURE
        assert await runtime.attachments.of("s") == [put]
        assert await check(runtime.store) == []


async def test_what_was_sent_is_called_as_it_was_put() -> None:
    agent, model = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        put = await runtime.attachments.put(PICTURE)
        claimed = hf.Attachment(put.digest, "application/pdf", 1, "invoice.pdf")
        await (await runtime.session("s", agent=agent).send(claimed)).outcome(timeout=SOON)
        message = model.requests[-1].messages[0]
        assert isinstance(message, hf.UserMessage)
        assert message.parts == (put,)


async def test_what_belongs_to_another_session_can_not_be_sent() -> None:
    agent, _ = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        put = await runtime.attachments.put(PICTURE, session="other")
        said: list[str] = []
        for digest in (put.digest, "0" * 64):
            with pytest.raises(hf.errors.AttachmentUnknown) as error:
                await runtime.session("s", agent=agent).send(hf.Attachment(digest, "image/png", 1))
            said.append(str(error.value).replace(digest, "..."))
        assert len(set(said)) == 1  # whoever guesses learns nothing
        assert await runtime.sessions() == []


async def test_a_file_that_was_sent_is_one_of_the_session() -> None:
    agent, _ = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send(hf.File(PICTURE, "image/png", name="cat.png"))
        (found,) = await runtime.attachments.of("s")
        assert (found.name, found.media_type) == ("cat.png", "image/png")


# ---- who may read ----------------------------------------------------------------------------------------------------


async def test_a_tool_reads_what_is_of_its_session_and_nothing_else() -> None:
    seen: list[str] = []

    @hf.tool(read_only=True)
    async def fetch(ctx: hf.Context, digest: str) -> str:
        try:
            seen.append(f"{len(await ctx.attachment(digest))} bytes")
        except hf.errors.AttachmentUnknown:
            seen.append("nothing")
        return seen[-1]

    async with hf.open(None) as runtime:
        mine = await runtime.attachments.put(b"mine", session="s")
        other = await runtime.attachments.put(b"of another", session="t")
        free = await runtime.attachments.put(b"of nobody")
        digests = [mine.digest, other.digest, free.digest, "0" * 64, "no digest at all"]
        script = [[call("fetch", digest=digest) for digest in digests], text("done")]
        agent, _ = _agent(fetch, script=script)
        runtime.register(agent)
        await (await runtime.session("s", agent=agent).send("x")).outcome(timeout=SOON)
    assert sorted(seen) == ["4 bytes", "nothing", "nothing", "nothing", "nothing"]


async def test_what_a_tool_attaches_reaches_the_model_and_belongs_to_the_session() -> None:
    @hf.tool(read_only=True)
    async def draw(ctx: hf.Context) -> list[Any]:
        return ["here", await ctx.attach(PICTURE, name="cat.png")]

    agent, model = _agent(draw, script=[call("draw"), text("A cat.")])
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("x")).outcome(timeout=SOON)
        (found,) = await runtime.attachments.of("s")
        assert (found.name, found.media_type) == ("cat.png", "image/png")
        assert model.requests[-1].files[found.digest] == PICTURE
        assert await check(runtime.store) == []


@pytest.mark.parametrize("whose", ["t", None], ids=["another one's", "nobody's"])
async def test_a_tool_can_not_return_an_attachment_that_its_session_may_not_read(whose: str | None) -> None:
    @hf.tool(read_only=True)
    async def leak(digest: str) -> Any:
        return hf.Attachment(digest, "text/plain", 6)

    async with hf.open(None) as runtime:
        other = await runtime.attachments.put(b"secret", session=whose)
        agent, model = _agent(leak, script=[call("leak", digest=other.digest), text("done")])
        runtime.register(agent)
        await (await runtime.session("s", agent=agent).send("x")).outcome(timeout=SOON)
        assert model.requests[-1].files == {}
        message = (await runtime.session("s").history())[-2]
        assert isinstance(message, hf.ToolMessage)
        assert message.results[0].state == "error"
        assert not await runtime.store.may_read("s", other.digest)


async def test_a_host_that_reads_for_a_session_gets_what_that_one_may_read() -> None:
    async with hf.open(None) as runtime:
        put = await runtime.attachments.put(b"x", session="s")
        assert await runtime.attachments.get(put, session="s") == b"x"
        with pytest.raises(hf.errors.AttachmentUnknown):
            await runtime.attachments.get(put, session="t")


# ---- bounds ----------------------------------------------------------------------------------------------------------


async def test_an_attachment_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 101)
    async with hf.open(None, limits=hf.StoreLimits(attachment_bytes=100)) as runtime:
        for data in (b"x" * 101, tmp_path / "large"):
            with pytest.raises(PayloadTooLarge, match="the limit is 100"):
                await runtime.attachments.put(data)
        await runtime.attachments.put(b"x" * 100)


@pytest.mark.parametrize(
    "limits", [hf.StoreLimits(attachments=2), hf.StoreLimits(attachments_bytes=2)], ids=["count", "bytes"]
)
async def test_a_session_has_so_much_and_no_more(limits: hf.StoreLimits) -> None:
    async with hf.open(None, limits=limits) as runtime:
        for data in (b"1", b"2", b"2"):
            await runtime.attachments.put(data, session="s")
        with pytest.raises(hf.errors.AttachmentsFull, match="'s'"):
            await runtime.attachments.put(b"3", session="s")
        await runtime.attachments.put(b"3", session="t")


@pytest.mark.parametrize("data", [b"", 7, None], ids=str)
async def test_what_can_not_be_meant_is_a_named_error(data: Any) -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.attachments.put(data)


async def test_a_file_that_is_not_there_is_a_named_error(tmp_path: Path) -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.UsageError, match="can be read"):
            await runtime.attachments.put(tmp_path / "missing")


# ---- collecting ------------------------------------------------------------------------------------------------------


async def test_what_nobody_has_sent_is_collected_after_a_day() -> None:
    agent, _ = _agent()
    clock = ManualClock()
    async with hf.open(None, agents=[agent], clock=clock, drive=False) as runtime:
        sent, left = await runtime.attachments.put(b"sent"), await runtime.attachments.put(b"left")
        await runtime.session("s", agent=agent).send(["x", sent])
        assert (await runtime.attachments.collect()).blobs == 0
        clock.advance(DAYS + 1)
        told = await runtime.attachments.collect(dry_run=True)
        assert (told.blobs, told.bytes, told.dry_run) == (1, 4, True)
        assert await runtime.attachments.get(left) == b"left"
        assert (await runtime.attachments.collect()).blobs == 1
        with pytest.raises(hf.errors.AttachmentUnknown):
            await runtime.attachments.get(left)
        assert await runtime.attachments.get(sent) == b"sent"
        assert await runtime.attachments.of() == [sent]
        assert await check(runtime.store) == []


async def test_what_turns_forks_and_tasks_refer_to_is_kept() -> None:
    @hf.tool(background=True)
    async def draw() -> Any:
        return hf.File(PICTURE, "image/png")

    agent, _ = _agent(draw, script=[call("draw"), text("begun"), text("told"), text("more")])
    clock = ManualClock()
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send(["x", await runtime.attachments.put(b"said")])).outcome(timeout=SOON)
        while getattr((await session.history())[-1], "text", "") != "told":
            await runtime.store.changed(runtime.store.version, 0.05)
        branch = await session.fork()
        clock.advance(10 * DAYS)
        assert (await runtime.attachments.collect()).blobs == 0
        for name in ("s", branch.id):
            (found,) = await runtime.attachments.of("s")
            assert await runtime.attachments.get(found, session=name) == b"said"


async def test_nothing_is_collected_where_nothing_is_referred_to() -> None:
    clock = ManualClock()
    async with hf.open(None, clock=clock) as runtime:
        put = await runtime.attachments.put(b"x")
        clock.advance(DAYS + 1)
        with pytest.raises(hf.errors.CollectionRefused, match="without_roots"):
            await runtime.attachments.collect()
        assert await runtime.attachments.get(put) == b"x"
        assert (await runtime.attachments.collect(without_roots=True)).blobs == 1


async def test_what_was_just_put_is_never_collected() -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.UsageError, match="0:10:00"):
            await runtime.attachments.collect(older_than=timedelta(minutes=9))


async def test_another_process_may_put_while_one_collects(tmp_path: Path) -> None:
    agent, _ = _agent()
    clock = ManualClock()
    path = tmp_path / "s.db"
    async with (
        hf.open(path, agents=[agent], clock=clock, drive=False) as runtime,
        hf.open(path, agents=[agent], clock=clock, drive=False, mirror=False) as other,
    ):
        old = await runtime.attachments.put(b"old")
        await runtime.session("root", agent=agent).send(hf.File(b"root", "text/plain"))
        clock.advance(2 * DAYS)
        again = await other.attachments.put(b"old")  # it is about to be sent
        assert again == old
        assert (await runtime.attachments.collect()).blobs == 0
        await other.session("s", agent=agent).send(["x", again])
        clock.advance(2 * DAYS)
        assert (await runtime.attachments.collect()).blobs == 0
        assert await check(other.store) == []
