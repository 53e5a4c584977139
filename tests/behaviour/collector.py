"""A collector: an HTTP server on loopback that takes OTLP and keeps what it was sent."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@dataclass(frozen=True)
class Received:
    """One span as it came over the wire."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str, str], ...]
    error: bool
    message: str
    service: str

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]


@dataclass
class Collector:
    """What the collector was sent, and how it answers."""

    url: str = ""
    spans: list[Received] = field(default_factory=list[Received])
    measured: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    status: int = 200
    refused: int = 0
    """Requests that had another status."""
    gate: threading.Event = field(default_factory=threading.Event)
    """Answers come when it is set."""

    def __post_init__(self) -> None:
        self.gate.set()

    def named(self, begin: str) -> list[Received]:
        return [span for span in list(self.spans) if span.name.startswith(begin)]

    def one(self, begin: str) -> Received:
        found = self.named(begin)
        assert len(found) == 1, [span.name for span in self.spans]
        return found[0]

    def take(self, path: str, body: bytes) -> None:
        if path.endswith("/v1/traces"):
            self.spans += received_spans(body)
        elif path.endswith("/v1/metrics"):
            self._take_metrics(body)

    def _take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in [metric for scope in resource.scope_metrics for metric in scope.metrics]:
                data = getattr(metric, metric.WhichOneof("data") or "")
                self.measured[metric.name] = [
                    attributes_of(point.attributes)
                    | {"value": point.sum if hasattr(point, "sum") else point.as_int or point.as_double}
                    for point in data.data_points
                ]

    async def until(self, seen: Callable[[Collector], object]) -> None:
        """Wait until the collector has got what is wanted."""
        async with asyncio.timeout(PATIENCE):
            while not seen(self):
                await asyncio.sleep(0.01)


def received_spans(body: bytes) -> list[Received]:
    """The spans of a request."""
    found: list[Received] = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = attributes_of(resource.resource.attributes).get("service.name", "")
        for span in [span for scope in resource.scope_spans for span in scope.spans]:
            links = tuple(
                (link.trace_id.hex(), link.span_id.hex(), attributes_of(link.attributes)["holdfast.link"])
                for link in span.links
            )
            found.append(
                Received(
                    *(span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind),
                    *(span.start_time_unix_nano, span.end_time_unix_nano, attributes_of(span.attributes), links),
                    *(span.status.code == 2, span.status.message, service),
                )
            )
    return found


def attributes_of(found: Any) -> dict[str, Any]:
    return {each.key: value_of(each.value) for each in found}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [value_of(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting() -> Generator[Collector]:
    """A collector on loopback."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.gate.wait(PATIENCE)
            if collector.status == 200:
                collector.headers.append(dict(self.headers))
                collector.take(self.path, body)
            else:
                collector.refused += 1
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
