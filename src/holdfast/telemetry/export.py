"""Export of spans and measurements: by the OpenTelemetry SDK of the application, to a collector, or as OTLP in JSON.

Only this module imports OpenTelemetry.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from base64 import b64decode
from collections import deque
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import aiohttp
from google.protobuf.json_format import MessageToDict
from opentelemetry import context, metrics, trace
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY  # pyright: ignore[reportPrivateUsage]  # as the SDK does
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto
from opentelemetry.proto.trace.v1.trace_pb2 import Status as StatusProto
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from holdfast import __version__, eventloop
from holdfast.errors import TelemetryUnconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context

    from holdfast.telemetry import Telemetry
    from holdfast.telemetry.spans import Span, SpanLink, Value

_log: Final = logging.getLogger("holdfast.telemetry")
SCOPE: Final = "holdfast"
BATCH: Final = 512
"""Spans in one request, or in one line of a file."""
SEND_INTERVAL: Final = 1.0
"""Pause between two requests to a collector, in seconds, unless a batch is full."""
METRICS_INTERVAL: Final = 30.0
"""Pause between two requests with measurements, in seconds."""
SEND_TIMEOUT: Final = 10.0
"""Time for one request with all retries, in seconds."""
RETRY_PAUSE: Final = 0.5
"""Pause before the second try, in seconds; it doubles with each try."""
WARN_INTERVAL: Final = 30.0
"""Least time between two warnings about dropped spans, in seconds."""
_TRACES: Final = "/v1/traces"
_METRICS: Final = "/v1/metrics"
_AGAIN: Final = frozenset((408, 429, 502, 503, 504))
"""Statuses after which a request is sent again."""
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
_NANOS: Final = 1_000_000
"""Nanoseconds in a millisecond."""


def make_resource(service: str | None) -> Resource:
    """The resource of spans that Holdfast sends by itself. The environment may name the service."""
    name = service or (None if os.environ.get("OTEL_SERVICE_NAME") else SCOPE)
    return Resource.create({} if name is None else {"service.name": name})


# ---- the current span ----


def _span_context(trace_id: str, span: str, flags: TraceFlags = _SAMPLED) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span, 16), is_remote=False, trace_flags=flags)


@contextmanager
def _current(span: SpanContext) -> Generator[None]:
    """Make a span the current one inside the block."""
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(span)))
    try:
        yield
    finally:
        context.detach(token)


# ---- where spans go ----


class _JournalIds(IdGenerator):
    """Gives the next span the ids that the journal derives."""

    def __init__(self) -> None:
        self._next = threading.local()

    def expect(self, trace_id: str, span: str) -> None:
        self._next.ids = int(trace_id, 16), int(span, 16)

    def generate_trace_id(self) -> int:
        return self._next.ids[0]

    def generate_span_id(self) -> int:
        return self._next.ids[1]

    def is_trace_id_random(self) -> bool:
        return True  # a digest is spread as evenly


_ids: Final = _JournalIds()


class ProviderTarget:
    """The tracer provider of the application: its sampler, its limits and its processors apply."""

    def __init__(self, provider: TracerProvider) -> None:
        self.dropped = 0
        tracer = provider.get_tracer(SCOPE, __version__)
        if not isinstance(tracer, Tracer):  # OTEL_SDK_DISABLED
            raise TelemetryUnconfigured("the tracer provider of the application is disabled")
        tracer.id_generator = _ids  # of this tracer alone, which has no other user
        self._tracer = tracer
        self.flags: Callable[[str], TraceFlags] = lru_cache(maxsize=1_024)(self._find_flags)

    def start(self) -> None:
        """The application runs its own exporters."""

    def emit(self, span: Span) -> None:
        _ids.expect(span.trace, span.id)
        above: Context = context.Context()
        if span.parent:
            parent = NonRecordingSpan(_span_context(span.trace, span.parent, self.flags(span.trace)))
            above = trace.set_span_in_context(parent, above)
        made = self._tracer.start_span(
            span.name,
            above,
            SpanKind.CLIENT if span.operation == "chat" else SpanKind.INTERNAL,
            span.attributes,
            [_link(link) for link in span.links],
            span.start * _NANOS,
        )
        if span.error:
            made.set_status(Status(StatusCode.ERROR, span.message or None))
        made.end(span.end * _NANOS)

    def _find_flags(self, trace_id: str) -> TraceFlags:
        """The sampler of the application decides by the id of the trace, so all processes agree."""
        sampled = self._tracer.sampler.should_sample(None, int(trace_id, 16), "invoke_agent")
        return _SAMPLED if sampled.decision.is_sampled() else _UNSAMPLED

    async def close(self, seconds: float) -> None:
        """The application flushes its own provider."""


def _link(link: SpanLink) -> Link:
    return Link(_span_context(link.trace, link.span), {"holdfast.link": link.reason})


class Collector:
    """A collector that takes OTLP over HTTP."""

    def __init__(self, endpoint: str | None, headers: Mapping[str, str] | None) -> None:
        self.base = (endpoint or environment("ENDPOINT")).rstrip("/").removesuffix(_TRACES)
        self._headers = {**_environment_headers(), **(headers or {}), "Content-Type": "application/x-protobuf"}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: bytes) -> bool:
        """Send a request, again if that may help; False if the collector did not take it."""
        token = context.attach(context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))  # no spans of sending spans
        try:
            return await self._post(f"{self.base}{path}", body)
        finally:
            context.detach(token)

    async def _post(self, url: str, body: bytes) -> bool:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers)
        pause, loop = RETRY_PAUSE, asyncio.get_running_loop()
        until = loop.time() + SEND_TIMEOUT
        while True:
            try:
                limit = aiohttp.ClientTimeout(total=until - loop.time())
                async with self._session.post(url, data=body, timeout=limit) as answer:
                    if answer.ok:
                        return True
                    reason = f"status {answer.status}"
                    if answer.status not in _AGAIN:
                        break
                    pause = max(pause, _seconds(answer.headers.get("Retry-After")))
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                reason = str(error) or type(error).__name__
            if loop.time() + pause >= until:
                break
            await asyncio.sleep(pause)
            pause *= 2
        _log.debug("%s: %s", url, reason)
        return False

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def environment(name: str) -> str:
    """A variable of OTLP: that of traces, or that of all signals."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _environment_headers() -> dict[str, str]:
    pairs = (each.partition("=") for each in environment("HEADERS").split(","))
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs if name.strip()}


def _seconds(given: str | None) -> float:
    return float(given) if given is not None and given.isascii() and given.isdigit() else 0.0


class CollectorTarget:
    """A collector of our own. A task sends; a full queue drops spans, which are counted and logged."""

    def __init__(self, settings: Telemetry) -> None:
        self.dropped = 0
        self._collector = Collector(settings.endpoint, settings.headers)
        self._limit = settings.queue
        self._queue: deque[Span] = deque()
        self._sending = 0
        """Spans of the request under way."""
        self._resource = make_resource(settings.service)
        self._full, self._wanted = asyncio.Event(), asyncio.Event()
        self._warned = -WARN_INTERVAL
        self._meters: InMemoryMetricReader | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(eventloop.spawn(self._send_spans()))
        if self._meters is not None:
            self._tasks.append(eventloop.spawn(self._send_metrics()))

    def meters(self) -> MeterProvider:
        """A meter provider whose measurements go to the same collector."""
        self._meters = InMemoryMetricReader()
        off = AlwaysOffExemplarFilter()  # spans are measured when they are over, outside of any span
        return MeterProvider([self._meters], self._resource, exemplar_filter=off, shutdown_on_exit=False)

    def emit(self, span: Span) -> None:
        if len(self._queue) + self._sending >= self._limit:
            self._drop(1, f"{self._collector.base} takes them too slowly, and {self._limit} wait")
            return
        self._queue.append(span)
        self._wanted.set()
        if len(self._queue) >= BATCH:
            self._full.set()

    def flags(self, trace_id: str, /) -> TraceFlags:
        return _SAMPLED

    async def _send_spans(self) -> None:
        while True:
            await self._wanted.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(SEND_INTERVAL):
                    await self._full.wait()
            await self._send_queue()

    async def _send_queue(self) -> None:
        self._wanted.clear()
        self._full.clear()
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            self._sending = len(batch)
            body = await asyncio.to_thread(_encode_batch, batch, self._resource)
            if not await self._collector.post(_TRACES, body):
                self._drop(len(batch), f"{self._collector.base} did not take them")
            self._sending = 0

    async def _send_metrics(self) -> None:
        while True:
            await asyncio.sleep(METRICS_INTERVAL)
            await self._send_measured()

    async def _send_measured(self) -> None:
        found = None if self._meters is None else self._meters.get_metrics_data()
        if found is not None and not await self._collector.post(_METRICS, encode_metrics(found).SerializeToString()):
            _log.warning("%s did not take the measurements; Telemetry(metrics=False) sends none", self._collector.base)

    def _drop(self, count: int, reason: str, *, last: bool = False) -> None:
        self.dropped += count
        now = time.monotonic()
        if last or now - self._warned >= WARN_INTERVAL:
            self._warned = now
            _log.warning("%d spans are dropped so far: %s", self.dropped, reason)

    async def close(self, seconds: float) -> None:
        """Send the queue within `seconds`; drop the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._sending:  # the request under way
                    await asyncio.sleep(0.005)
                await self._send_queue()
                await self._send_measured()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if lost := len(self._queue) + self._sending:
            self._drop(lost, f"{self._collector.base} did not take them before the runtime was closed", last=True)
        await self._collector.close()


# ---- OTLP ----


def _encode_batch(spans: Sequence[Span], resource: Resource) -> bytes:
    return encode_spans(spans, resource).SerializeToString()


def encode_spans(spans: Iterable[Span], resource: Resource) -> ExportTraceServiceRequest:
    """A request with these spans."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.extend([_attribute(name, value) for name, value in resource.attributes.items()])
    scope = group.scope_spans.add()
    scope.scope.name, scope.scope.version = SCOPE, __version__
    add = scope.spans.add
    for span in spans:
        made = add(
            trace_id=bytes.fromhex(span.trace),
            span_id=bytes.fromhex(span.id),
            parent_span_id=bytes.fromhex(span.parent),
            name=span.name,
            kind=_CLIENT if span.operation == "chat" else _INTERNAL,
            start_time_unix_nano=span.start * _NANOS,
            end_time_unix_nano=span.end * _NANOS,
            flags=_FLAGS,
        )
        # Bytes of messages in a row are the bytes of the merged message.
        made.MergeFromString(b"".join([_attribute_bytes(name, value) for name, value in span.attributes.items()]))
        if span.error:
            made.status.code, made.status.message = StatusProto.STATUS_CODE_ERROR, span.message
        for link in span.links:
            made.links.add(
                trace_id=bytes.fromhex(link.trace),
                span_id=bytes.fromhex(link.span),
                attributes=[_attribute("holdfast.link", link.reason)],
            )
    return request


_CLIENT: Final = SpanProto.SPAN_KIND_CLIENT
_INTERNAL: Final = SpanProto.SPAN_KIND_INTERNAL
_FLAGS: Final = 0x100 | 1
"""The trace is sampled, and the parent is known not to be remote."""
_MAX_CACHED: Final = 200
"""Longest text of an attribute that is cached."""


def _attribute(name: str, value: Any) -> KeyValue:
    return KeyValue(key=name, value=_any_value(value))


def _attribute_bytes(name: str, value: Any) -> bytes:
    """The bytes of a span that has only this attribute. Most attributes come again and again."""
    if type(value) is str and len(value) > _MAX_CACHED:
        return SpanProto(attributes=[_attribute(name, value)]).SerializeToString()
    return _cached_attribute_bytes(name, value)


@lru_cache(maxsize=8_192, typed=True)  # 1 and True are equal
def _cached_attribute_bytes(name: str, value: Any) -> bytes:
    return SpanProto(attributes=[_attribute(name, value)]).SerializeToString()


def _any_value(value: Value) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=value)
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=[_any_value(each) for each in value]))


async def send_spans(endpoint: str, spans: Sequence[Span]) -> bool:
    """Send spans to a collector now; False if it did not take them."""
    collector, resource = Collector(endpoint, None), make_resource(None)
    try:
        for batch in _batches(spans):
            if not await collector.post(_TRACES, _encode_batch(batch, resource)):
                return False
    finally:
        await collector.close()
    return True


def otlp_objects(spans: Sequence[Span]) -> Iterator[object]:
    """Spans in the JSON of OTLP, one object for each batch."""
    resource = make_resource(None)
    for batch in _batches(spans):
        yield _with_hex_ids(MessageToDict(encode_spans(batch, resource), use_integers_for_enums=True))


def _batches(spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
    return (spans[at : at + BATCH] for at in range(0, len(spans), BATCH))


_IDS: Final = frozenset(("traceId", "spanId", "parentSpanId"))


def _with_hex_ids(value: object) -> object:
    """The JSON of OTLP has ids in hexadecimal, where that of Protobuf has Base64."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: b64decode(each).hex() if name in _IDS else _with_hex_ids(each) for name, each in fields.items()}
    return [_with_hex_ids(each) for each in cast("list[object]", value)] if isinstance(value, list) else value


# ---- measurements ----


class Measurements:
    """The metrics of finished spans."""

    def __init__(self, provider: metrics.MeterProvider, dropped: Callable[[], int]) -> None:
        meter = provider.get_meter(SCOPE, __version__)
        self.waiting = 0
        """Sessions and processes that wait."""
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens of model calls")
        self._duration = meter.create_histogram("gen_ai.client.operation.duration", "s", "Duration of operations")
        self._turns = meter.create_counter("holdfast.turns", "{turn}", "Turns that ended")
        self._retries = meter.create_counter("holdfast.retries", "{retry}", "Repeated attempts of models and tools")
        meter.create_observable_gauge(
            "holdfast.waiting",
            [lambda _: [metrics.Observation(self.waiting)]],
            "{run}",
            "Sessions and processes that wait",
        )
        meter.create_observable_counter(
            "holdfast.spans.dropped", [lambda _: [metrics.Observation(dropped())]], "{span}", "Spans that were dropped"
        )

    def take(self, span: Span) -> None:
        """Measure a span that ended in this process."""
        found = span.attributes
        attempts = found.get("holdfast.attempts")
        if isinstance(attempts, int) and attempts > 1:
            self._retries.add(attempts - 1, {"gen_ai.operation.name": span.operation})
        if span.operation not in {"chat", "invoke_agent"}:
            return
        labels = {name: found[name] for name in _LABELS if name in found}
        self._duration.record((span.end - span.start) / 1_000, labels)
        if span.operation == "chat":
            for kind in ("input", "output"):
                count = found.get(f"gen_ai.usage.{kind}_tokens")
                if isinstance(count, int):
                    self._tokens.record(count, labels | {"gen_ai.token.type": kind})
        else:
            agent, status = found.get("gen_ai.agent.name", ""), found["holdfast.status"]
            self._turns.add(1, {"holdfast.status": status, "gen_ai.agent.name": agent})


_LABELS: Final = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "error.type",
)


# ---- the export of one runtime ----


class SpanExport:
    """Sends the spans of one runtime, and measures them."""

    def __init__(self, settings: Telemetry) -> None:
        target = self._target = _target(settings)
        meters: metrics.MeterProvider | None = settings.meter_provider
        if meters is None and settings.metrics:
            meters = target.meters() if isinstance(target, CollectorTarget) else metrics.get_meter_provider()
        self._measurements: Measurements | None = None
        if meters is not None and settings.metrics:
            self._measurements = Measurements(meters, lambda: target.dropped)

    def start(self) -> None:
        """Begin to send."""
        self._target.start()

    @property
    def measures(self) -> bool:
        return self._measurements is not None

    def add(self, spans: Iterable[Span], *, fresh: bool) -> None:
        """Export spans; `fresh`: they ended in this process."""
        for span in spans:
            self._target.emit(span)
            if fresh and self._measurements is not None:
                self._measurements.take(span)

    def count_waiting(self, count: int) -> None:
        """Measure how many sessions and processes wait."""
        if self._measurements is not None:
            self._measurements.waiting = count

    def current(self, trace_id: str, span: str) -> AbstractContextManager[object]:
        """Make a span the current one inside a block."""
        return _current(_span_context(trace_id, span, self._target.flags(trace_id)))

    def caller(self) -> str:
        """The current span of the application as a W3C ``traceparent``; empty without one."""
        found = trace.get_current_span().get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}" if found.is_valid else ""

    async def close(self, seconds: float) -> None:
        """Send the queue; drop spans that can't be sent within `seconds`."""
        await self._target.close(seconds)


def _target(settings: Telemetry) -> ProviderTarget | CollectorTarget:
    if settings.endpoint is not None:
        return CollectorTarget(settings)
    provider = settings.tracer_provider or trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        return ProviderTarget(provider)
    if isinstance(provider, trace.ProxyTracerProvider) and environment("ENDPOINT"):
        return CollectorTarget(settings)
    raise TelemetryUnconfigured(
        "the application has no tracer provider of the OpenTelemetry SDK, and no endpoint is set"
    )
