"""The commands, as they are called. What they do is imported when one is called, so that `--help` is quick."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from holdfast.cli.options import (
    DEFAULT_STORE,
    AgentArgument,
    AgentOption,
    AsOption,
    CallInvalid,
    Format,
    FormatOption,
    IdArgument,
    JsonOption,
    PlaceArgument,
    SessionOption,
    StoreOption,
    YesOption,
    explained,
    finish,
)

ApprovalArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="An approval, as 'holdfast inbox' shows it; a cut id is fine.", show_default=False
    ),
]
ByOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--by", metavar="NAME", help="Who answers; the login name where nobody is named.", show_default=False),
]


def run(  # noqa: PLR0913
    agent: AgentArgument,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="What to say; '-' reads it from standard input. It alone is enough with the agent of a profile.",
            show_default=False,
        ),
    ] = None,
    *,
    session: SessionOption = None,
    as_id: AsOption = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The same key with the same prompt is the same turn, sent twice or not."),
    ] = None,
    output: FormatOption = Format.text,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return at once; a process of its own does the work.")
    ] = False,
    steer: Annotated[bool, typer.Option("--steer", help="Enter the turn that is running, if one is.")] = False,
    deadline: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The turn must have ended by then, from now on.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Ask an agent, and show its answer.

    What was asked is in the store before anything is done about it. If this process is killed, 'holdfast resume' goes
    on from the same step. Ctrl-C cancels the turn; pressed again, it leaves at once.

    Exit codes: 0 completed, 1 failed, 2 wrong call, 3 waits for a person, 4 cancelled, 5 limit reached.
    """
    from holdfast.cli import profiles as profiled  # noqa: PLC0415
    from holdfast.cli import run as running  # noqa: PLC0415

    agent, prompt = profiled.spoken(agent, prompt)
    asked = running.Asked(
        store=store,
        agent=agent,
        prompt=prompt,
        session=session,
        as_id=as_id,
        key=key,
        deadline=deadline,
        steer=steer,
        detach=detach,
        format=output,
    )
    finish(running.run(asked))


def resume(  # noqa: PLR0913
    id: PlaceArgument,
    *,
    agent: AgentOption = None,
    yes: YesOption = False,
    output: FormatOption = Format.text,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return at once; a process of its own does the work.")
    ] = False,
    unattended: Annotated[bool, typer.Option("--unattended", hidden=True)] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Go on with a session that was interrupted, queued or answered, until it has nothing left to do.

    Exit codes as for 'run', for the last turn.
    """
    from holdfast.cli import run as running  # noqa: PLC0415

    finish(running.resume(store, id, agent, output, unattended=unattended, detach=detach, yes=yes))


def chat(
    agent: AgentArgument,
    *,
    session: SessionOption = None,
    as_id: AsOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Talk to an agent, line by line.

    /history shows what was said, /quit leaves; Ctrl-C stops an answer. Lines may also come through a pipe.
    """
    from holdfast.cli import run as chatting  # noqa: PLC0415

    with explained():
        code = chatting.chat(store, agent, session, as_id)
    raise typer.Exit(code)


def ps(
    *,
    every: Annotated[bool, typer.Option("--all", "-a", help="All sessions, also those with nothing to do.")] = False,
    tree: Annotated[bool, typer.Option("--tree", help="Sub-agents below the sessions that they work for.")] = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List the sessions that run or wait, those that changed last first.

    'interrupted': it ran, and nobody works on it; 'holdfast resume ID' goes on. 'queued': nobody has begun.
    """
    from holdfast.cli import sessions as listing  # noqa: PLC0415

    finish(listing.ps(store, every=every, as_json=as_json, tree=tree))


def show(  # noqa: PLR0913
    id: PlaceArgument,
    *,
    raw: Annotated[bool, typer.Option("--raw", help="The records themselves, one JSON object to a line.")] = False,
    history: Annotated[bool, typer.Option("--history", help="All that was said, message by message.")] = False,
    context: Annotated[bool, typer.Option("--context", help="What the model sees of it now.")] = False,
    words: Annotated[
        str | None, typer.Option("--find", metavar="WORDS", help="Only messages with these words.", show_default=False)
    ] = None,
    request: Annotated[
        int | None,
        typer.Option(
            "--request", metavar="N", min=1, help="What the model was asked in its N-th call.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Show what happened in a session: its turns, their steps, how long they took, and which process did them."""
    if sum((raw, history, context, request is not None)) > 1 or (words and (raw or request is not None)):
        message = "--raw, --history, --context and --request show different things: give one of them"
        with explained():
            raise CallInvalid(message)
    if history or context or words:
        from holdfast.cli import show as conversing  # noqa: PLC0415

        finish(conversing.conversation(store, id, context=context, words=words, as_json=as_json))
    from holdfast.cli import show as showing  # noqa: PLC0415

    if request is not None:
        finish(showing.show_request(store, id, request, as_json=as_json))
    finish(showing.show(store, id, raw=raw, as_json=as_json))


def logs(
    id: PlaceArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is to come, until Ctrl-C.")] = False,
    since: Annotated[int, typer.Option(metavar="SEQ", min=0, help="Only what came after this record.")] = 0,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Print the events of a session, one to a line."""
    from holdfast.cli import show as eventlines  # noqa: PLC0415

    finish(eventlines.logs(store, id, follow=follow, since=since, as_json=as_json))


def fork(
    id: IdArgument,
    *,
    at: Annotated[int, typer.Option(metavar="SEQ", help="The last record that the new session shares.")],
    as_id: Annotated[str | None, typer.Option("--as", metavar="ID", help="The id of the new session.")] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Begin another session where this one was at a record; prints its id. This one stays as it is."""
    from holdfast.cli import sessions as acting  # noqa: PLC0415

    finish(acting.fork(store, id, at, as_id))


def compact(id: IdArgument, *, store: StoreOption = DEFAULT_STORE) -> None:
    """Have the older part of a conversation summarised, before it is too long for the model.

    The request is durable when this ends; whoever works on the session carries it out. The history stays as it is.
    """
    from holdfast.cli import sessions as acting  # noqa: PLC0415

    finish(acting.compact(store, id))


def cancel(
    id: PlaceArgument,
    *,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded.", show_default=False)] = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Cancel the turn that is under way, whoever works on it.

    Exit code 0 when it was cancelled, 1 when that came too late.
    """
    from holdfast.cli import sessions as acting  # noqa: PLC0415

    finish(acting.cancel(store, id, reason))


def resolve(  # noqa: PLR0913
    id: Annotated[
        str,
        typer.Argument(metavar="KEY|ID", help="The key that a tool has given out, or a session.", show_default=False),
    ],
    wait: Annotated[
        str | None,
        typer.Argument(metavar="[WAIT]", help="Of a session: what it waits for, as 'ps' shows it.", show_default=False),
    ] = None,
    value: Annotated[str | None, typer.Argument(metavar="JSON", help="The answer.", show_default=False)] = None,
    *,
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="TEXT", help="Say that there is no answer, and why.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Give the result of a call that was deferred (KEY JSON), or answer what a session waits for (ID WAIT JSON).

    The first answer counts. Exit code 0 when it was this one, 1 when it came too late.
    """
    from holdfast.cli import approvals as resolving  # noqa: PLC0415

    finish(resolving.resolve(store, [id, *(given for given in (wait, value) if given is not None)], error, as_json))


def replay(  # noqa: PLR0913
    id: PlaceArgument,
    *,
    check: Annotated[bool, typer.Option("--check", help="Compare what the code would do with the record.")] = False,
    agent: AgentOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Drive the turns of a session again from its records, without doing anything.

    Exit code 1 when the code takes another way than the record; a prompt that has changed is only reported.
    """
    from holdfast.cli import sessions as replaying  # noqa: PLC0415

    finish(replaying.replay(store, id, agent, check=check, yes=yes, as_json=as_json))


def inbox(
    *,
    refused: Annotated[
        bool, typer.Option("--refused", help="List the last inputs that were not taken in, and why, instead.")
    ] = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List what waits for a person, with the command that answers each.

    These are calls that want an approval, the waits of sessions, calls of which nobody knows how they ended, and
    notifications that were given up.
    """
    if refused:
        from holdfast.cli import approvals as turned_away  # noqa: PLC0415

        finish(turned_away.refused(store, as_json=as_json))
    from holdfast.cli import approvals as shown  # noqa: PLC0415

    finish(shown.inbox(store, as_json=as_json))


def approve(  # noqa: PLR0913
    id: ApprovalArgument,
    *,
    by: ByOption = None,
    edit: Annotated[bool, typer.Option("--edit", help="Change the arguments first, in $VISUAL or $EDITOR.")] = False,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Approve it with these arguments instead.", show_default=False)
    ] = None,
    always: Annotated[
        bool, typer.Option("--always", help="Store a rule, too, that answers calls like this one from now on.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Only show the call, all of it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; for calls that lists show whole.")] = False,
    yes_all: Annotated[bool, typer.Option("--yes-all", help="Do not ask, however long the call is.")] = False,
    agent: AgentOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Let a call be made, once and exactly as it is shown. The first answer counts.

    It is shown in full, and you are asked. The agent is needed for --always and to check changed arguments; it is the
    one that the session was run with, or that of --agent. Exit code 1 when nothing was approved.
    """
    from holdfast.cli import approvals as approving  # noqa: PLC0415

    asked = approving.Asked(
        store=store,
        id=id,
        by=by,
        agent=agent,
        arguments=arguments,
        edit=edit,
        always=always,
        show=show,
        yes=yes,
        yes_all=yes_all,
    )
    with explained():
        code = approving.approve(asked)
    raise typer.Exit(code)


def deny(
    id: ApprovalArgument,
    *,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the model is told.", show_default=False)] = "",
    by: ByOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Do not let a call be made; the model is told, and the turn goes on. The first answer counts."""
    from holdfast.cli import approvals as approving  # noqa: PLC0415

    finish(approving.deny(store, id, reason, by))
