"""Export of spans and measurements: by the OpenTelemetry SDK of the application, to a collector, or into a file.

Only this module imports OpenTelemetry.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from base64 import b64decode
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from google.protobuf.json_format import MessageToDict
from opentelemetry import context, metrics, trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from holdfast import __version__
from holdfast.errors import TelemetryUnconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from opentelemetry.context import Context

    from holdfast.telemetry import Telemetry
    from holdfast.telemetry.spans import Span, SpanLink

_log: Final = logging.getLogger("holdfast.telemetry")
SCOPE: Final = "holdfast"
BATCH: Final = 512
"""Spans in one request, or in one line of a file."""
SEND_INTERVAL: Final = 1.0
"""Pause between two requests to a collector, in seconds, unless a batch is full."""
SEND_TIMEOUT: Final = 10.0
"""Time for one batch with all retries, in seconds."""
WARN_INTERVAL: Final = 30.0
"""Least time between two warnings about dropped spans, in seconds."""
_TRACES: Final = "/v1/traces"
_METRICS: Final = "/v1/metrics"
_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
_ERROR: Final = StatusCode.ERROR
_UNSET: Final = Status(StatusCode.UNSET)
_NANOS: Final = 1_000_000
"""Nanoseconds in a millisecond."""


# ---- spans as OpenTelemetry has them ----


def _span_context(trace_id: str, span: str, flags: TraceFlags = _SAMPLED) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span, 16), is_remote=False, trace_flags=flags)


def _links(links: Sequence[SpanLink]) -> list[Link]:
    return [Link(_span_context(link.trace, link.span), {"holdfast.link": link.reason}) for link in links]


def _kind(span: Span) -> SpanKind:
    return SpanKind.CLIENT if span.operation == "chat" else SpanKind.INTERNAL


def _status(span: Span) -> Status:
    return Status(_ERROR, span.message or None) if span.error else _UNSET


def make_resource(service: str | None) -> Resource:
    """The resource of our own export. The environment may name the service."""
    name = service or (None if os.environ.get("OTEL_SERVICE_NAME") else SCOPE)
    return Resource.create({} if name is None else {"service.name": name})


_scope: Final = InstrumentationScope(SCOPE, __version__)


def readable_span(span: Span, resource: Resource) -> ReadableSpan:
    """A finished span with the ids that the journal gives it."""
    return ReadableSpan(
        span.name,
        _span_context(span.trace, span.id),
        _span_context(span.trace, span.parent) if span.parent else None,
        resource,
        span.attributes,
        (),
        _links(span.links) if span.links else (),
        _kind(span),
        status=_status(span),
        start_time=span.start * _NANOS,
        end_time=span.end * _NANOS,
        instrumentation_scope=_scope,
    )


class _Current:
    """Makes a span the current one inside a block."""

    __slots__ = ("_context", "_token")

    def __init__(self, span: SpanContext) -> None:
        self._context = span

    def __enter__(self) -> None:
        self._token = context.attach(trace.set_span_in_context(NonRecordingSpan(self._context)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        context.detach(self._token)


def current_caller() -> str:
    """The current span as a W3C ``traceparent``; empty without one."""
    found = trace.get_current_span().get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}" if found.is_valid else ""


# ---- where spans go ----


class SpanTarget(Protocol):
    """Takes finished spans. Never waits."""

    dropped: int

    def emit(self, span: Span) -> None: ...

    def flags(self, trace_id: str) -> TraceFlags: ...

    async def close(self, seconds: float) -> None: ...


class _JournalIds(IdGenerator):
    """Gives the next span the ids that the journal derives."""

    def __init__(self) -> None:
        self._next = threading.local()

    def expect(self, trace_id: int, span: int) -> None:
        self._next.ids = trace_id, span

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
        tracer.id_generator = _ids  # of this tracer alone, which nobody else uses
        self._tracer = tracer
        self.flags: Callable[[str], TraceFlags] = lru_cache(maxsize=1_024)(self._find_flags)

    def emit(self, span: Span) -> None:
        _ids.expect(int(span.trace, 16), int(span.id, 16))
        above: Context = context.Context()
        if span.parent:
            parent = NonRecordingSpan(_span_context(span.trace, span.parent, self.flags(span.trace)))
            above = trace.set_span_in_context(parent, above)
        made = self._tracer.start_span(
            span.name, above, _kind(span), span.attributes, _links(span.links), span.start * _NANOS
        )
        if span.error:
            made.set_status(_status(span))
        made.end(span.end * _NANOS)

    def _find_flags(self, trace_id: str) -> TraceFlags:
        """Whether a trace is sampled, which its sampler decides by the id."""
        sampled = self._tracer.sampler.should_sample(None, int(trace_id, 16), "invoke_agent")
        return _SAMPLED if sampled.decision.is_sampled() else _UNSAMPLED

    async def close(self, seconds: float) -> None:
        """The application flushes its own provider."""


class _CountedExporter(SpanExporter):
    def __init__(self, exporter: SpanExporter, ended: Callable[[int, bool], None]) -> None:
        self._exporter = exporter
        self._ended = ended

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._ended(len(spans), result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class CollectorTarget:
    """A collector that speaks OTLP over HTTP. A thread sends; a full queue drops spans, which are counted and logged."""

    def __init__(self, settings: Telemetry) -> None:
        self.dropped = 0
        self._limit = settings.queue
        self._emitted = self._ended = 0
        self._warned = -WARN_INTERVAL
        self._lock = threading.Lock()
        self._resource = make_resource(settings.service)
        self._exporter = OTLPSpanExporter(
            signal_url(settings.endpoint, _TRACES), headers=settings.headers, timeout=SEND_TIMEOUT
        )
        self._processor = BatchSpanProcessor(
            _CountedExporter(self._exporter, self._sent),
            max_queue_size=settings.queue,
            schedule_delay_millis=SEND_INTERVAL * 1_000,
            max_export_batch_size=min(BATCH, settings.queue),
        )
        self._closed = False

    def emit(self, span: Span) -> None:
        if self._emitted - self._ended >= self._limit:
            self._drop(1, "the collector is slower than the spans come, and the queue is full")
            return
        self._emitted += 1
        self._processor.on_end(readable_span(span, self._resource))

    def flags(self, trace_id: str) -> TraceFlags:
        return _SAMPLED

    def _sent(self, count: int, taken: bool) -> None:
        self._ended += count
        if not (taken or self._closed):
            self._drop(count, "the collector did not take them")

    def _drop(self, count: int, reason: str) -> None:
        with self._lock:
            self.dropped += count
            now = time.monotonic()
            if now - self._warned < WARN_INTERVAL and not self._closed:
                return
            self._warned = now
        _log.warning("%d spans are lost so far: %s", self.dropped, reason)

    async def close(self, seconds: float) -> None:
        """Send what is left within `seconds`; drop the rest."""
        if not await _in_thread(self._processor.shutdown, seconds):
            self._closed = True
            self._exporter.shutdown()
            if lost := self._emitted - self._ended:
                self._drop(lost, "the collector did not take them before the runtime was closed")


async def _in_thread(work: Callable[[], object], seconds: float) -> bool:
    """Run `work` in a thread that holds up neither the loop nor the end of the process; False if it takes longer."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            work()
        except Exception as error:
            _log.warning("the last spans or measurements could not be sent: %s", error)
        with suppress(RuntimeError):  # the loop is closed by now
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, name="holdfast-telemetry", daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        return False
    return True


def signal_url(endpoint: str | None, path: str) -> str | None:
    """The address of one signal; None: the environment names it."""
    if endpoint is None:
        return None
    base = endpoint.rstrip("/").removesuffix(_TRACES)
    return f"{base}{path}"


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
        self._resumed = meter.create_counter("holdfast.resumed", "{turn}", "Times that a turn or a process was resumed")
        meter.create_observable_gauge(
            "holdfast.waiting", [lambda _: [metrics.Observation(self.waiting)]], "{run}", "What waits"
        )
        meter.create_observable_counter(
            "holdfast.spans.dropped", [lambda _: [metrics.Observation(dropped())]], "{span}", "Spans that were dropped"
        )

    def take(self, span: Span) -> None:
        """Measure a span that ended in this process."""
        found = span.attributes
        if span.operation not in {"chat", "execute_tool", "invoke_agent"}:
            return
        labels: dict[str, Any] = {"gen_ai.operation.name": span.operation}
        for name in ("gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model", "error.type"):
            if name in found:
                labels[name] = found[name]
        if span.operation == "execute_tool":
            labels["gen_ai.tool.name"] = found["gen_ai.tool.name"]
        self._duration.record((span.end - span.start) / 1_000, labels)
        attempts = found.get("holdfast.attempts")
        if isinstance(attempts, int) and attempts > 1:
            self._retries.add(attempts - 1, {"gen_ai.operation.name": span.operation})
        if span.operation == "chat":
            for kind in ("input", "output"):
                count = found.get(f"gen_ai.usage.{kind}_tokens")
                if isinstance(count, int):
                    self._tokens.record(count, labels | {"gen_ai.token.type": kind})
        elif span.operation == "invoke_agent":
            labels = {"holdfast.status": found["holdfast.status"], "gen_ai.agent.name": found["gen_ai.agent.name"]}
            self._turns.add(1, labels)
            resumed = found["holdfast.resumed"]
            if isinstance(resumed, int) and resumed:
                self._resumed.add(resumed, labels)


# ---- the export of one runtime ----


class SpanExport:
    """Sends the spans of one runtime, and measures them."""

    def __init__(self, settings: Telemetry) -> None:
        self._target = _target(settings)
        self._meters = _own_meters(settings) if isinstance(self._target, CollectorTarget) else None
        meters = self._meters or settings.meter_provider
        if meters is None and not isinstance(self._target, CollectorTarget):
            meters = metrics.get_meter_provider()
        measured = meters is not None and settings.metrics
        self._measurements = Measurements(meters, lambda: self._target.dropped) if measured else None

    @property
    def measures(self) -> bool:
        return self._measurements is not None

    @property
    def dropped(self) -> int:
        """Spans that were not exported."""
        return self._target.dropped

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
        return _Current(_span_context(trace_id, span, self._target.flags(trace_id)))

    @staticmethod
    def caller() -> str:
        """The current span of the application as a W3C ``traceparent``; empty without one."""
        return current_caller()

    async def close(self, seconds: float) -> None:
        """Send what is left; drop what can't be sent within `seconds`."""
        until = time.monotonic() + seconds
        await self._target.close(seconds)
        if self._meters is not None:
            left = max(until - time.monotonic(), 0.1)
            await _in_thread(lambda: self._shut_meters(left), left)

    def _shut_meters(self, seconds: float) -> None:
        if self._meters is not None:
            self._meters.shutdown(timeout_millis=seconds * 1_000)


def _target(settings: Telemetry) -> SpanTarget:
    if settings.endpoint is not None:
        return CollectorTarget(settings)
    provider = settings.tracer_provider or trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        return ProviderTarget(provider)
    if isinstance(provider, trace.ProxyTracerProvider) and any(os.environ.get(name) for name in _VARIABLES):
        return CollectorTarget(settings)
    raise TelemetryUnconfigured(
        "the application has no tracer provider of the OpenTelemetry SDK, and no endpoint is given"
    )


def _own_meters(settings: Telemetry) -> MeterProvider | None:
    if not settings.metrics or settings.meter_provider is not None:
        return None
    exporter = OTLPMetricExporter(
        signal_url(settings.endpoint, _METRICS), headers=settings.headers, timeout=SEND_TIMEOUT
    )
    reader = PeriodicExportingMetricReader(exporter)
    return MeterProvider([reader], make_resource(settings.service), shutdown_on_exit=False)


# ---- afterwards: spans from the journal ----


def send_spans(endpoint: str, spans: Sequence[Span], headers: Mapping[str, str] | None = None) -> bool:
    """Send spans to a collector now; False if it did not take them."""
    exporter, resource = (
        OTLPSpanExporter(signal_url(endpoint, _TRACES), headers=dict(headers or {})),
        make_resource(None),
    )
    try:
        return all(
            exporter.export([readable_span(span, resource) for span in batch]) is SpanExportResult.SUCCESS
            for batch in _batches(spans)
        )
    finally:
        exporter.shutdown()


def otlp_lines(spans: Sequence[Span]) -> Iterable[dict[str, Any]]:
    """Spans in the JSON of OTLP, one object for each batch."""
    resource = make_resource(None)
    for batch in _batches(spans):
        made = encode_spans([readable_span(span, resource) for span in batch])
        yield _with_hex_ids(MessageToDict(made, use_integers_for_enums=True))


def _batches(spans: Sequence[Span]) -> Iterable[Sequence[Span]]:
    return (spans[at : at + BATCH] for at in range(0, len(spans), BATCH))


_IDS: Final = frozenset(("traceId", "spanId", "parentSpanId"))


def _with_hex_ids(value: Any) -> Any:
    """The JSON of OTLP has ids in hexadecimal, where that of Protobuf has Base64."""
    if isinstance(value, dict):
        return {
            name: b64decode(each).hex() if name in _IDS else _with_hex_ids(each)
            for name, each in value.items()  # pyright: ignore[reportUnknownVariableType]
        }
    return [_with_hex_ids(each) for each in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]
