"""What must hold of attachments. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.store.contract import Reader


def audit_attachments(reader: Reader, blobs: Mapping[str, bool]) -> Iterator[tuple[str, str, str]]:
    """Each attachment has its bytes."""
    for found in reader.attachments.raw():
        if found.digest not in blobs:
            yield "blob", f"attachment of {found.session!r}", f"refers to {found.digest}, which is not there"
