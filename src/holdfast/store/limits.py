"""Every bound of a store."""

from __future__ import annotations

import msgspec


class StoreLimits(msgspec.Struct, frozen=True):
    """Every bound of a store, with its default."""

    record_bytes: int = 1024 * 1024
    """One record. Larger values belong into blobs."""
    inline_bytes: int = 32 * 1024
    """Values above this are stored as blobs by the effect boundary."""
    input_bytes: int = 1024 * 1024
    """One accepted input, or one resolution of a wait."""
    blob_bytes: int = 64 * 1024 * 1024
    """One blob."""
    attachment_bytes: int = 64 * 1024 * 1024
    """One attachment."""
    attachments: int = 10_000
    """Attachments of one session, and those of none."""
    attachments_bytes: int = 4 * 1024 * 1024 * 1024
    """All attachments of one session, and those of none."""
    pending_inputs: int = 1_000
    """Inputs that wait for one journal."""
    page: int = 1_000
    """Rows that one read returns at the most."""
    page_bytes: int = 16 * 1024 * 1024
    """Payload that one read returns at the most (a single larger row comes alone)."""
    queued: int = 100_000
    """Commands that wait for the writer."""
    queued_bytes: int = 256 * 1024 * 1024
    """Payload that waits for the writer."""
    batch: int = 2_048
    """Commands that one transaction takes at the most."""
    batch_bytes: int = 16 * 1024 * 1024
    """Payload that one transaction takes at the most (a single larger command goes alone)."""
    busy_ms: int = 10_000
    """How long a write waits for another process."""
    read_ms: int = 30_000
    """How long one read may take."""
    wal_bytes: int = 16 * 1024 * 1024
    """The write-ahead log is reset when it is larger."""
    wal_max_bytes: int = 1024 * 1024 * 1024
    """Writes are refused when a foreign reader has kept the write-ahead log from being reset for so long."""
    wait_bytes: int = 1024 * 1024
    """What one wait asks."""
    rule_bytes: int = 32 * 1024
    """One stored rule."""
    rules: int = 200
    """Stored rules in force for one agent, and for every one."""
    notification_bytes: int = 32 * 1024
    """The body of one notification."""
    notifications: int = 1_000
    """Notifications that one journal has not finished with."""
    max_attempts: int = 8
    """How often a notification is carried into a turn before it is given up."""
    notification_kept_ms: int = 30 * 24 * 60 * 60 * 1000
    """How long a notification is kept when it is acknowledged, cancelled or expired; and its key with it."""
    memory_bytes: int = 256 * 1024
    """One value in memory."""
    scope_bytes: int = 16 * 1024 * 1024
    """All keys and values of one scope of memory."""
    scope_entries: int = 10_000
    """Entries of one scope of memory."""
    memory_changes: int = 50
    """Changes of one entry that are remembered; older ones are forgotten."""
