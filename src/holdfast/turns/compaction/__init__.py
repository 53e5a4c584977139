"""Compaction: fits a conversation that outgrows the model's window, without losing any of it. Pure.

    gauge = gauge.read(view.thread)                          # costs what was added
    if gauge.needs(budget):
        match plan(view.thread, budget, counter, gauge.known, first_of_turn):
            case Plan() as made: ...                         # recorded; a span needs a summary, or `fallback`
            case None: ...                                   # nothing is worth doing, or nothing can be removed
        thread = apply(view.thread, made, summary)

The plan says what goes, by the ids of messages. It is a record of the journal: the history is as it was, and the same
messages with the same plan always give what the model saw.
"""
