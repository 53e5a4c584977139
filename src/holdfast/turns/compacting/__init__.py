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

from holdfast.turns.compacting.applying import apply, fallback
from holdfast.turns.compacting.breaker import Breaker
from holdfast.turns.compacting.budget import Budget, Reported, TooLarge, Why
from holdfast.turns.compacting.clipping import place_of, result_id, without_files, without_words
from holdfast.turns.compacting.counting import Careful, Counter, Estimator, text_tokens
from holdfast.turns.compacting.gauge import Gauge
from holdfast.turns.compacting.marks import mark_of, summary_in
from holdfast.turns.compacting.planning import plan
from holdfast.turns.compacting.plans import Clip, Plan, Span, decode_plan
from holdfast.turns.compacting.quoting import QuoteLimits
from holdfast.turns.compacting.summarising import (
    HEADINGS,
    Chunk,
    Refused,
    Request,
    accept_summary,
    chunks,
    counted_chunks,
    prior_of,
    repair_request,
    summary_request,
)
from holdfast.turns.compacting.view import View

__all__ = [
    "HEADINGS",
    "Breaker",
    "Budget",
    "Careful",
    "Chunk",
    "Clip",
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
