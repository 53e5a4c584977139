"""Tracing with OpenTelemetry: `Telemetry` says where the spans of a runtime go. See docs/tracing.md.

OpenTelemetry is imported when a runtime is opened with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from holdfast.errors import InvalidArgument, TelemetryMissing
from holdfast.names import check_int

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.store import Store
    from holdfast.telemetry.tracer import Tracer

QUEUE: Final = 2_048
"""Spans that may wait for a collector."""
__all__ = ["Telemetry"]


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Exports spans and measurements of a runtime: ``hf.open(..., telemetry=...)``.

    Without `endpoint` they go to the tracer provider and the meter provider of the application, or to the collector in
    ``OTEL_EXPORTER_OTLP_ENDPOINT``. With it they go to that collector, by OTLP over HTTP.
    """

    endpoint: str | None = None
    """The address of a collector, such as ``http://127.0.0.1:4318``."""
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """Headers for the collector, such as its key."""
    content: bool = False
    """Spans also show messages, arguments, results and error messages."""
    metrics: bool = True
    """Measurements are sent too. Turn it off for a collector that takes spans only."""
    service: str | None = None
    """The name of the service; without it that of ``OTEL_SERVICE_NAME``, or ``holdfast``. For an endpoint only."""
    queue: int = QUEUE
    """Spans that may wait for the collector; more are dropped, counted and logged."""
    tracer_provider: Any = None
    """A `TracerProvider` of the OpenTelemetry SDK in place of the global one."""
    meter_provider: Any = None
    """A `MeterProvider` in place of the global one."""

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            check_endpoint(self.endpoint)
        check_int("queue", self.queue, least=1)


def check_endpoint(endpoint: object) -> str:
    """Return the address of a collector, or raise `InvalidArgument`."""
    wanted = "an http or https address such as http://127.0.0.1:4318"
    try:
        parts = urlsplit(endpoint) if isinstance(endpoint, str) else None
        usable = parts is not None and parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not isinstance(endpoint, str):
        raise InvalidArgument("endpoint", endpoint, wanted)
    return endpoint


def require_otel() -> None:
    """Raise `TelemetryMissing` unless OpenTelemetry is installed."""
    try:
        import_module("holdfast.telemetry.export")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"opentelemetry", "google"}:
            raise
        raise TelemetryMissing from error


def make_tracer(store: Store, settings: Telemetry) -> Tracer:
    """The tracer of a runtime."""
    if not isinstance(settings, Telemetry):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("telemetry", settings, "a Telemetry")
    require_otel()
    from holdfast.telemetry.export import SpanExport
    from holdfast.telemetry.tracer import Tracer

    return Tracer(store, SpanExport(settings), settings.content)
