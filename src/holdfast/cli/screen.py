"""What is shown of a turn while it runs: words for people, one object for scripts, or every event as a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast import events
from holdfast.cli.options import Format
from holdfast.cli.sessions import wait_label
from holdfast.cli.terminal import duration, one_line, stderr, stdout
from holdfast.messages import AssistantMessage
from holdfast.output import parse

if TYPE_CHECKING:
    from holdfast.cli.terminal import Terminal
    from holdfast.events import Event
    from holdfast.runtime import TurnOutcome


class Screen(Protocol):
    """Where a turn is shown."""

    def event(self, event: Event) -> None:
        """Something happened in the turn."""
        ...

    def ended(self, outcome: TurnOutcome) -> None:
        """The turn has ended."""
        ...

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        """The turn can't go on until somebody answers."""
        ...

    def remark(self, text: str) -> None:
        """Something to tell beside the answer."""
        ...


def screen_for(format: Format) -> Screen:
    """The screen for an output format."""
    match format:
        case Format.text:
            return TextScreen(stdout(), stderr())
        case Format.json:
            return JsonScreen(stdout(), stderr())
        case Format.events:
            return EventScreen(stdout(), stderr())


class TextScreen:
    """The answer. On a terminal it comes as it is spoken, with a line for each tool call on the error stream."""

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self._out = out
        self._err = err
        self._said = ""
        """The words of the present reply that are on the screen."""
        self._midline = False

    def event(self, event: Event) -> None:
        if self._out.live:
            self._speak(event)
        if self._err.live:
            self._tell(event)

    def _speak(self, event: Event) -> None:
        match event:
            case events.TextDelta():
                self._say(event.text)
                self._said += event.text
            case events.ModelStarted() | events.RunResumed():
                self._begin_anew()
            case events.AttemptReset():
                self._begin_anew()
                self.remark(f"the reply begins anew: {one_line(event.reason)}")
            case events.MessageCommitted(message=AssistantMessage() as message):
                if message.text.startswith(self._said):
                    self._say(message.text[len(self._said) :])
                else:  # some of it was lost on the way
                    self._begin_anew()
                    self._say(message.text)
                self._begin_anew()
            case _:
                pass

    def _tell(self, event: Event) -> None:
        match event:
            case events.MessageCommitted(message=AssistantMessage() as message):
                for call in message.calls:
                    asked = one_line(msgspec.json.encode(call.arguments).decode(), 80)
                    self.remark(f"-> {one_line(call.name, 40)} {asked}")
            case events.ToolExecutionProgress():
                share = "" if event.fraction is None else f" {event.fraction:.0%}"
                self.remark(f".. {event.tool}{share} {one_line(event.note or '', 80)}".rstrip())
            case events.HandedOver():
                self.remark(f"=> {one_line(event.agent, 40)} has the session: {one_line(event.reason, 80)}")
            case events.ToolExecutionFinished():
                self.remark(f"<- {event.tool} {event.state}, {duration(event.ms)}")
            case _:
                pass

    def _say(self, text: str) -> None:
        if text:
            self._out.write(self._out.clean(text))
            self._midline = not text.endswith("\n")

    def _begin_anew(self) -> None:
        self._said = ""
        self._end_line()

    def _end_line(self) -> None:
        if self._midline:
            self._out.write("\n")
            self._midline = False

    def ended(self, outcome: TurnOutcome) -> None:
        if not self._out.live and outcome.text:
            self._out.line(outcome.text)
        self._begin_anew()
        if not outcome.ok:
            told = (outcome.code, one_line(outcome.message, 500))
            why = ": ".join(part for part in told if part not in {"", outcome.status})
            said = self._err.status(outcome.status)
            self._err.line(f"{said}: {why}" if why else said)

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:  # noqa: ARG002  remarks say it
        self._begin_anew()

    def remark(self, text: str) -> None:
        self._end_line()
        self._err.line(self._err.paint(text, "dim"))


class JsonScreen:
    """One object at the end."""

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self._out = out
        self._err = err

    def event(self, event: Event) -> None:
        pass

    def ended(self, outcome: TurnOutcome) -> None:
        told: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(outcome, value=None))
        if outcome.value is not None:
            told["value"] = parse(outcome.text)  # the answer itself: its type may have no JSON form of its own
        self._print(told)

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        self._print(
            {
                "session": session,
                "turn": turn,
                "status": "waiting",
                "waits": [{"name": name, "label": wait_label(name)} for name in waits],
            }
        )

    def _print(self, told: dict[str, Any]) -> None:
        self._out.line(msgspec.json.encode(told).decode())

    def remark(self, text: str) -> None:
        self._err.line(text)


class EventScreen:
    """Every event, one JSON object to a line, as it comes."""

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self._out = out
        self._err = err

    def event(self, event: Event) -> None:
        self._out.line(events.encode(event).decode())

    def ended(self, outcome: TurnOutcome) -> None:
        pass

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        pass

    def remark(self, text: str) -> None:
        self._err.line(text)


class QuietScreen:
    """For a process that nobody watches: only how each turn ended, in its log."""

    def __init__(self, err: Terminal) -> None:
        self._err = err

    def event(self, event: Event) -> None:
        pass

    def ended(self, outcome: TurnOutcome) -> None:
        self._err.line(f"{outcome.session}/{outcome.turn} {outcome.status} {one_line(outcome.message)}".rstrip())

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        self._err.line(f"{session}/{turn} waits for {', '.join(map(wait_label, waits))}")

    def remark(self, text: str) -> None:
        self._err.line(text)
