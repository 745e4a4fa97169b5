"""Where `forktree serve --traces` sends its spans: an OTLP collector, as OpenTelemetry's own variables say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forktree.commands.programs import UsageError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


def tracer_provider() -> TracerProvider:
    """A provider that exports in the background; its `shutdown` sends what is left.

    The collector is `OTEL_EXPORTER_OTLP_ENDPOINT` (default: http://localhost:4318), the sampler `OTEL_TRACES_SAMPLER`,
    the service's name `OTEL_SERVICE_NAME` (default: forktree).

    Raises UsageError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UsageError(
            f"--traces needs {error.name}, which is not installed; `pip install 'forktree[otel]'`"
        ) from None
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "forktree"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
