"""What must always be true of stored rules, checked over the raw rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.digests import blob_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.contract import Reader


def audit_rules(reader: Reader) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant: which, where, and what was found."""
    in_force: set[tuple[str, str]] = set()
    for rule, sound in reader.rules.raw():
        where = f"rule {rule.id}"
        if not sound:
            yield "checksum", where, "the rule does not match its checksum or its seal"
            continue
        if blob_digest(rule.body.encode()) != rule.digest:
            yield "rule", where, "what it says does not match its digest"
        if (rule.removed_by is None) != (rule.removed_at is None):
            yield "rule", where, "it was removed by nobody, or at no time"
        if rule.removed_at is None:
            if (rule.agent, rule.digest) in in_force:
                yield "rule", where, "the same rule is in force twice"
            in_force.add((rule.agent, rule.digest))
