"""The model whose exchanges are recorded, or played back."""

from __future__ import annotations

import asyncio
import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import unquote

from holdfast.errors import InvalidArgument, RecordingInvalid
from holdfast.models.contract import respond
from holdfast.models.endpoints import ENDPOINTS, endpoint
from holdfast.models.flags import flags_of
from holdfast.models.http import HttpModel
from holdfast.models.names import dialect as dialect_of
from holdfast.models.names import model as named
from holdfast.models.recorded.format import APIS, read
from holdfast.models.recorded.transports import RecordingTransport, ReplayingTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from holdfast.messages import ModelReply, ModelRequest, StreamEvent
    from holdfast.models.contract import Model
    from holdfast.models.recorded.format import Recording
    from holdfast.models.wire import Endpoint

Mode = Literal["replay", "record", "auto"]

_SPOKEN: Final = {dialect: {api} for dialect, api in APIS.items()} | {
    "google": {"google.streamGenerateContent", "google.generateContent"}
}
_USUAL: Final = {"anthropic": "anthropic", "responses": "openai", "chat": "openai-chat", "google": "google"}
"""Who stands for a dialect where the file does not say who spoke."""
_MODEL_IN_PATH: Final = re.compile(r"/(?:models|deployments)/([^/:]+)")
_NO_KEY: Final = "replay"
_NOWHERE: Final = "https://replay.invalid"


class RecordedModel:
    """A model whose exchanges are recorded in a file, or played back from one.

    `mode`: ``replay`` plays the file back, ``record`` asks `model` and writes the file anew, ``auto`` plays it back if
    it is there and records it otherwise. To play back, `model` may be left out: the file says whose words it holds.
    With ``check=False`` a request may differ from the recorded one; `differences` then says where.
    """

    def __init__(
        self, path: str | Path, model: Model | str | None = None, *, mode: Mode = "replay", check: bool = True
    ) -> None:
        self.path = Path(path)
        if mode not in {"replay", "record", "auto"}:
            raise InvalidArgument("mode", mode, "'replay', 'record' or 'auto'")
        self.recording = mode == "record" or (mode == "auto" and not self.path.exists())
        """Whether the model is really asked."""
        self._replay: ReplayingTransport | None = None
        if self.recording:
            self._model = _recorded(self.path, model)
        else:
            recording = read(self.path)
            self._replay = ReplayingTransport(self.path, recording.exchanges, check=check)
            self._model = _replayed(self.path, recording, model, self._replay)
        self.name = self._model.name

    def __repr__(self) -> str:
        return f"RecordedModel({str(self.path)!r}, {self.name!r}, mode={'record' if self.recording else 'replay'!r})"

    @property
    def left(self) -> int:
        """Exchanges of the file that nobody has asked for yet."""
        return 0 if self._replay is None else self._replay.left

    @property
    def differences(self) -> tuple[tuple[int, str], ...]:
        """Where requests were not those of the recording: number of the request, and words."""
        return () if self._replay is None else tuple(self._replay.differences)

    async def respond(self, request: ModelRequest) -> ModelReply:
        """The whole reply at once."""
        return await respond(self, request)

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The reply as it comes, or as it came."""
        return self._model.stream(request)


def _recorded(path: Path, model: Model | str | None) -> HttpModel:
    if model is None:
        raise InvalidArgument("model", None, "the model to record")
    if not path.parent.is_dir():
        raise RecordingInvalid(path, "its folder does not exist")
    recorded = copy(_http(model))
    recorded.transport = RecordingTransport(path, recorded.transport, recorded.endpoint)
    return recorded


def _replayed(path: Path, recording: Recording, model: Model | str | None, transport: ReplayingTransport) -> HttpModel:
    if model is None:
        place, name = _speaker(path, recording)
        model = HttpModel(place, name, dialect_of(place.dialect))
    given = _http(model)
    return HttpModel(
        given.endpoint,
        given.model,
        given.dialect,
        api_key=_NO_KEY,
        transport=transport,
        retry=given.retry,
        timeouts=given.timeouts,
        sleep=_at_once,
    )


def _http(model: Model | str) -> HttpModel:
    found = named(model)
    if not isinstance(found, HttpModel):
        raise InvalidArgument("model", found, "a model that is reached over HTTP")
    return found


async def _at_once(_seconds: float) -> None:
    """The pauses between tries were made when it was recorded."""
    await asyncio.sleep(0)


def _speaker(path: Path, recording: Recording) -> tuple[Endpoint, str]:
    """Whose words a file holds: the endpoint that speaks its API, and the model that its first request names."""
    apis = recording.apis
    dialect = next((dialect for dialect, spoken in _SPOKEN.items() if spoken.intersection(apis)), None)
    if dialect is None:
        raise RecordingInvalid(path, f"nobody here speaks {', '.join(apis) or 'what it holds'}")
    unknown = sorted(set(recording.flags or ()).difference(flags_of(dialect)))
    if unknown:
        raise RecordingInvalid(path, f"the {dialect} dialect has no flag {', '.join(unknown)}")
    known = ENDPOINTS.get(recording.provider or _USUAL[dialect])
    address = known.endpoint.base_url if known is not None and known.endpoint.dialect == dialect else ""
    # Somebody who is not known has the flags that the file names, and no others.
    found = endpoint(
        recording.provider or _USUAL[dialect], base_url=address or _NOWHERE, dialect=dialect, flags=recording.flags
    )
    named_in = (_model_in(exchange.request) for exchange in recording.exchanges if exchange.request is not None)
    return found, next(filter(None, named_in), "unknown")


def _model_in(request: Mapping[str, Any]) -> str | None:
    body = request.get("body")
    model = cast("dict[str, Any]", body).get("model") if isinstance(body, dict) else None
    if isinstance(model, str):
        return model
    found = _MODEL_IN_PATH.search(str(request.get("path", "")))
    return unquote(found[1]) if found else None
