"""Snapshots under a seal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sandbox.contract import HostCall
from holdfast.sandbox.monty import MAX_SNAPSHOT, SnapshotPosition, seal, snapshot_key, unseal

KEY = snapshot_key(b"secret of a store")
CALL = HostCall("p/0", "tool", "fetch", {"n": 1}, "d")
PLACE = SnapshotPosition(program="p", sandbox="s 1", ordinal=1, given=0, chain="c", waiting={3: CALL}, printed="é")
STATE = b"state" * 100
SEALED = seal(KEY, PLACE, STATE) or b""


def test_what_was_sealed_is_opened() -> None:
    assert unseal(KEY, SEALED) == (PLACE, STATE)


def test_another_key_opens_nothing() -> None:
    assert unseal(snapshot_key(b"another secret"), SEALED) is None


@given(st.integers(0, len(SEALED) * 8 - 1))
def test_no_bit_can_be_changed(bit: int) -> None:
    changed = bytearray(SEALED)
    changed[bit // 8] ^= 1 << bit % 8
    assert unseal(KEY, bytes(changed)) is None


@given(st.integers(0, len(SEALED) - 1))
def test_nothing_can_be_cut_off(size: int) -> None:
    assert unseal(KEY, SEALED[:size]) is None


@given(st.binary(max_size=200))
def test_anything_else_is_not_opened(data: bytes) -> None:
    assert unseal(KEY, data) is None


@pytest.mark.parametrize("size", [MAX_SNAPSHOT + 1])
def test_a_snapshot_that_is_too_large_is_not_made(size: int) -> None:
    assert seal(KEY, PLACE, b"\0" * size) is None


def test_the_largest_snapshot_is_opened() -> None:
    sealed = seal(KEY, PLACE, b"\0" * MAX_SNAPSHOT)
    assert sealed is not None
    opened = unseal(KEY, sealed)
    assert opened is not None
    assert len(opened[1]) == MAX_SNAPSHOT
