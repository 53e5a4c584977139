"""Records: the exact bytes of every kind, and what a reader of another age does with them."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from tests.every import every

from holdfast import records
from holdfast.errors import RecordUnreadable
from holdfast.records import (
    EFFECT_KINDS,
    FORMAT,
    Admitted,
    Blob,
    Cancelled,
    Done,
    EffectRequest,
    Ended,
    ErrorInfo,
    Failed,
    Grouped,
    Handed,
    Intended,
    Opened,
    Parked,
    Progressed,
    Record,
    Resumed,
    Started,
    Status,
    Unknown,
    blobs_of,
    next_status,
    touches_lists,
)
from holdfast.store.client import is_plain

_DIGEST = "ab" * 32
_ASK = EffectRequest("tool_call", "refund", _DIGEST, msgspec.Raw(b'{"cents":1}'))
_BARE_ASK = EffectRequest("step", "x", _DIGEST)
_BLOB = Blob(_DIGEST, 70_000)

_ASK_JSON = f'{{"kind":"tool_call","target":"refund","content":"{_DIGEST}","body":{{"cents":1}}}}'
_BARE_ASK_JSON = f'{{"kind":"step","target":"x","content":"{_DIGEST}"}}'
_BLOB_JSON = f'{{"digest":"{_DIGEST}","size":70000}}'

GOLDEN: list[tuple[Record, str]] = [
    (
        Opened(at=1, kind="process", agent="clerk", format=1),
        '{"t":"opened","kind":"process","format":1,"agent":"clerk","at":1}',
    ),
    (Opened(at=1, kind="session", format=1), '{"t":"opened","kind":"session","format":1,"at":1}'),
    (
        Opened(at=1, kind="session", format=1, parent="p", parent_seq=12),
        '{"t":"opened","kind":"session","format":1,"parent":"p","parent_seq":12,"at":1}',
    ),
    (
        Opened(at=1, kind="process", format=1, role="task", session="s"),
        '{"t":"opened","kind":"process","format":1,"role":"task","session":"s","at":1}',
    ),
    (
        Admitted(at=1, input=3, key="k", body=msgspec.Raw(b'"hi"')),
        '{"t":"admitted","input":3,"key":"k","body":"hi","at":1}',
    ),
    (
        Admitted(at=1, input=3, key="k", blob=_BLOB),
        f'{{"t":"admitted","input":3,"key":"k","blob":{_BLOB_JSON},"at":1}}',
    ),
    (Admitted(at=1, input=3, key="k", run="t1"), '{"t":"admitted","input":3,"key":"k","run":"t1","at":1}'),
    (Started(at=1, run="main"), '{"t":"started","run":"main","at":1}'),
    (Started(at=1, run="main", code="v1"), '{"t":"started","run":"main","code":"v1","at":1}'),
    (Started(at=1, run="main", by="pid 4711"), '{"t":"started","run":"main","by":"pid 4711","at":1}'),
    (Resumed(at=1, run="main", by="pid 4712"), '{"t":"resumed","run":"main","by":"pid 4712","at":1}'),
    (
        Handed(at=1, run="t1", key="t1/2.tools/1.give", agent="cook", by="clerk"),
        '{"t":"handed","run":"t1","key":"t1/2.tools/1.give","agent":"cook","by":"clerk","at":1}',
    ),
    (
        Handed(at=1, run="t1", key="k", agent="b", by="a", reason="r", untrusted=True, private=True),
        '{"t":"handed","run":"t1","key":"k","agent":"b","by":"a","reason":"r","untrusted":true,"private":true,"at":1}',
    ),
    (Parked(at=1, run="main"), '{"t":"parked","run":"main","at":1}'),
    (Parked(at=1, run="main", waits=("a", "b")), '{"t":"parked","run":"main","waits":["a","b"],"at":1}'),
    (
        Ended(at=1, run="main", status="completed", value=msgspec.Raw(b"null")),
        '{"t":"ended","run":"main","status":"completed","value":null,"at":1}',
    ),
    (
        Ended(at=1, run="main", status="completed", blob=_BLOB),
        f'{{"t":"ended","run":"main","status":"completed","blob":{_BLOB_JSON},"at":1}}',
    ),
    (
        Ended(at=1, run="main", status="failed", error=ErrorInfo("ValueError", "é")),
        '{"t":"ended","run":"main","status":"failed","error":{"kind":"ValueError","message":"é"},"at":1}',
    ),
    (
        Ended(at=1, run="main", status="cancelled", unstarted=True),
        '{"t":"ended","run":"main","status":"cancelled","unstarted":true,"at":1}',
    ),
    (
        Ended(at=1, run="main", status="cancelled", unstarted=True, blob=_BLOB),
        f'{{"t":"ended","run":"main","status":"cancelled","blob":{_BLOB_JSON},"unstarted":true,"at":1}}',
    ),
    (Intended(at=1, key="main/refund", ask=_ASK), f'{{"t":"intended","key":"main/refund","ask":{_ASK_JSON},"at":1}}'),
    (Done(at=1, key="main/x", value=msgspec.Raw(b"[1]")), '{"t":"done","key":"main/x","value":[1],"at":1}'),
    (
        Done(at=1, key="main/x", ask=_BARE_ASK, blob=_BLOB),
        f'{{"t":"done","key":"main/x","ask":{_BARE_ASK_JSON},"blob":{_BLOB_JSON},"at":1}}',
    ),
    (
        Failed(at=1, key="main/x", error=ErrorInfo("E", "m"), ask=_ASK),
        f'{{"t":"failed","key":"main/x","error":{{"kind":"E","message":"m"}},"ask":{_ASK_JSON},"at":1}}',
    ),
    (
        Failed(at=1, key="main/x", error=ErrorInfo("E", "")),
        '{"t":"failed","key":"main/x","error":{"kind":"E","message":""},"at":1}',
    ),
    (Unknown(at=1, key="main/x"), '{"t":"unknown","key":"main/x","at":1}'),
    (Cancelled(at=1, key="main/x"), '{"t":"cancelled","key":"main/x","at":1}'),
    (Cancelled(at=1, key="main/x", ask=_BARE_ASK), f'{{"t":"cancelled","key":"main/x","ask":{_BARE_ASK_JSON},"at":1}}'),
    (
        Grouped(at=1, key="main/g", wake="race", members=("main/g/0.a", "main/g/1.b")),
        '{"t":"grouped","key":"main/g","wake":"race","members":["main/g/0.a","main/g/1.b"],"at":1}',
    ),
    (Progressed(at=1, run="task", note="half"), '{"t":"progressed","run":"task","note":"half","at":1}'),
    (Progressed(at=1, run="task", fraction=0.5), '{"t":"progressed","run":"task","fraction":0.5,"at":1}'),
]


def _name(item: object) -> str:
    return type(item).__name__ if isinstance(item, msgspec.Struct) else ""


@every(("record", "body"), GOLDEN, ids=_name)
def test_each_record_has_exactly_these_bytes(record: Record, body: str) -> None:
    assert records.encode(record).decode() == body


@every(("record", "body"), GOLDEN, ids=_name)
def test_each_record_is_read_back_as_it_was(record: Record, body: str) -> None:
    assert records.decode(body.encode()) == record


def test_every_kind_of_record_has_its_bytes_here() -> None:
    assert {type(record) for record, _ in GOLDEN} == set(get_args(Record))


def test_a_handoff_is_known_by_its_first_bytes() -> None:
    found = {type(record) for record, _ in GOLDEN if records.encode(record).startswith(records.HANDED_PREFIX)}
    assert found == {Handed}


def test_the_first_record_of_a_journal_carries_the_format_version() -> None:
    # A default that is left out of the bytes would say "whatever the reader's own version is".
    opened = Opened(at=1, kind="session", format=FORMAT)
    assert msgspec.json.decode(records.encode(opened))["format"] == FORMAT


@every("body", [body for _, body in GOLDEN])
def test_fields_of_a_newer_release_are_ignored(body: str) -> None:
    newer = msgspec.json.decode(body) | {"added_later": {"x": [1]}}
    assert records.decode(msgspec.json.encode(newer)) == records.decode(body.encode())


@every(
    "body",
    [
        b'{"t":"teleported","at":1}',
        b'{"at":1}',
        b'{"t":"started","at":1}',
        b'{"t":"started","run":5,"at":1}',
        b'{"t":"ended","run":"r","status":"exploded","at":1}',
        b'{"t":"opened","kind":"session","format":2,"at":1}',
        b'{"t":"opened","kind":"session","format":99,"at":1}',
        b'{"t":"started","run":"\xff","at":1}',
        b'{"t":"started","run":"r","at":1',
        b"[]",
        b"null",
        b"",
    ],
)
def test_what_is_not_a_record_of_this_format_is_refused(body: bytes) -> None:
    with pytest.raises(RecordUnreadable):
        records.decode(body)


def test_a_newer_format_is_named_in_the_refusal() -> None:
    with pytest.raises(RecordUnreadable) as caught:
        records.decode(b'{"t":"opened","kind":"session","format":2,"at":1}')
    assert "format 2" in caught.value.reason
    assert f"knows {FORMAT}" in caught.value.reason


def test_the_kinds_of_effects_are_these() -> None:
    assert sorted(EFFECT_KINDS) == [
        *("await_event", "checkpoint", "direct", "exec_code", "model_call", "process"),
        *("sample", "sleep", "step", "sync_environment", "tool_call"),
    ]


def test_a_record_names_the_blobs_it_refers_to() -> None:
    for record, body in GOLDEN:
        assert blobs_of(record) == ((_BLOB,) if '"blob"' in body else ())


def test_a_plain_record_touches_no_list_no_inbox_no_wait_and_no_blob() -> None:
    for record, _ in GOLDEN:
        concerned = touches_lists(record) or isinstance(record, Admitted | Ended) or bool(blobs_of(record))
        assert is_plain(record) is not concerned, record


def test_the_end_of_a_run_that_never_began_touches_no_list() -> None:
    ended = Ended(at=1, run="queued", status="cancelled")
    assert touches_lists(ended)
    assert not touches_lists(msgspec.structs.replace(ended, unstarted=True))


_STATUSES: tuple[Status, ...] = get_args(Status)


@every("status", _STATUSES)
@every("record", [record for record, _ in GOLDEN], ids=_name)
def test_the_status_follows_the_record(status: Status, record: Record) -> None:
    match record:
        case Ended(unstarted=True):
            expected = status
        case Ended():
            expected = record.status
        case Started() | Resumed():
            expected = "running"
        case Parked():
            expected = "waiting"
        case Opened() | Admitted():
            expected = status
        case _:
            expected = "running" if status == "waiting" else status
    assert next_status(status, record) == expected
