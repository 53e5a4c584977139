"""The limits of a store."""

from __future__ import annotations

import msgspec


class StoreLimits(msgspec.Struct, frozen=True):
    """The limits of a store, with their defaults."""

    record_bytes: int = 1024 * 1024
    """One record. Larger values belong in blobs."""
    inline_bytes: int = 32 * 1024
    """Results of effects above this become blobs."""
    input_bytes: int = 1024 * 1024
    """One input, or one resolution of a wait."""
    blob_bytes: int = 64 * 1024 * 1024
    """One blob."""
    attachment_bytes: int = 64 * 1024 * 1024
    """One attachment."""
    attachments: int = 10_000
    """Attachments of one session, or of no session."""
    attachments_bytes: int = 4 * 1024 * 1024 * 1024
    """All attachments of one session, or of no session."""
    pending_inputs: int = 1_000
    """Pending inputs of one journal."""
    page: int = 1_000
    """Rows of one read."""
    page_bytes: int = 16 * 1024 * 1024
    """Payload of one read (a single larger row comes alone)."""
    queued: int = 100_000
    """Commands in the queue of the writer."""
    queued_bytes: int = 256 * 1024 * 1024
    """Payload in the queue of the writer."""
    batch: int = 2_048
    """Commands of one transaction."""
    batch_bytes: int = 16 * 1024 * 1024
    """Payload of one transaction (a single larger command goes alone)."""
    busy_ms: int = 10_000
    """Time that a write waits for another process."""
    read_ms: int = 30_000
    """Time of one read, after which it is interrupted; a store in memory does not interrupt reads."""
    wal_bytes: int = 16 * 1024 * 1024
    """Size of the write-ahead log at which it is reset."""
    wal_max_bytes: int = 1024 * 1024 * 1024
    """Size of the write-ahead log at which writes are refused, because a foreign reader keeps it from being reset."""
    wait_bytes: int = 1024 * 1024
    """The question of one wait."""
    rule_bytes: int = 32 * 1024
    """One stored rule."""
    rules: int = 200
    """Rules in force for one agent, or for every agent."""
    notification_bytes: int = 32 * 1024
    """The body of one notification."""
    notifications: int = 1_000
    """Queued and claimed notifications of one journal."""
    max_attempts: int = 8
    """Turns that carry a notification before it is dead."""
    notification_kept_ms: int = 30 * 24 * 60 * 60 * 1000
    """Time until an acknowledged, cancelled or expired notification may be purged, and its key with it."""
    memory_bytes: int = 256 * 1024
    """One value in memory."""
    scope_bytes: int = 16 * 1024 * 1024
    """All keys and values of one scope of memory."""
    scope_entries: int = 10_000
    """Entries of one scope of memory."""
    memory_changes: int = 50
    """Changes in the history of one entry of memory."""
