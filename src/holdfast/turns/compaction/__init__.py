"""Compaction: a conversation that outgrows the model's window is made to fit, and nothing of it is lost. Pure.

    gauge = gauge.read(view.thread)                          # costs what was added
    if gauge.needs(budget):
        match plan(view.thread, budget, counter, gauge.known, first_of_turn):
            case Plan() as made: ...                         # recorded; a span needs a summary, or `fallback`
            case TooLarge() as why: ...
            case None: ...                                   # nothing is worth doing
        view = view.compacted(made, summary)

The plan says what goes, by the ids of messages. It is a record of the journal: the history is as it was, and the same
messages with the same plan always give what the model saw.
"""

from __future__ import annotations

from holdfast.turns.compaction.apply import View, apply, fallback
from holdfast.turns.compaction.budget import (
    Careful,
    ContextBudget,
    Counter,
    Estimator,
    Gauge,
    Reported,
    TooLarge,
    Why,
    text_tokens,
)
from holdfast.turns.compaction.plan import (
    Breaker,
    Clip,
    Plan,
    Span,
    decode_plan,
    mark_of,
    place_of,
    plan,
    result_id,
    summary_in,
    without_files,
    without_words,
)
from holdfast.turns.compaction.summary import (
    HEADINGS,
    Chunk,
    QuoteLimits,
    Refused,
    Request,
    accept_summary,
    chunks,
    counted_chunks,
    prior_of,
    repair_request,
    summary_request,
)

__all__ = [
    "HEADINGS",
    "Breaker",
    "Careful",
    "Chunk",
    "Clip",
    "ContextBudget",
    "Counter",
    "Estimator",
    "Gauge",
    "Plan",
    "QuoteLimits",
    "Refused",
    "Reported",
    "Request",
    "Span",
    "TooLarge",
    "View",
    "Why",
    "accept_summary",
    "apply",
    "chunks",
    "counted_chunks",
    "decode_plan",
    "fallback",
    "mark_of",
    "place_of",
    "plan",
    "prior_of",
    "repair_request",
    "result_id",
    "summary_in",
    "summary_request",
    "text_tokens",
    "without_files",
    "without_words",
]
