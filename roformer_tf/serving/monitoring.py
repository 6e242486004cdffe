"""Metrics of the service for Prometheus: requests, latency, batches.

With several worker processes, `PROMETHEUS_MULTIPROC_DIR` is set: each process then writes its
figures into files of that folder, and /metrics of any process adds them up. Prometheus' library
does both.
"""

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_fastapi_instrumentator import Instrumentator

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServiceMetrics:
    """The metrics of one service, in a registry of its own; all names begin with `roformer_`."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.models = Gauge(
            "roformer_model_info",
            "A served model; always 1.",
            ["model", "task"],
            registry=registry,
            multiprocess_mode="max",  # of several processes: 1 as well, not their number
        )
        self.waiting = Gauge(
            "roformer_waiting_requests",
            "Requests that wait for a model.",
            registry=registry,
            # The last value of a process that was killed remains in the sum.
            multiprocess_mode="livesum",
        )
        self.generated_tokens = Counter(
            "roformer_generated_tokens",
            "Generated tokens, including those of samples that were not returned.",
            registry=registry,
        )
        self.batch_texts = Histogram(
            "roformer_batch_texts",
            "Texts (pairs, triples) in a batch.",
            buckets=TEXTS,
            registry=registry,
        )
        self.batch_seconds = Histogram(
            "roformer_batch_duration_seconds",
            "Seconds that the model took for a batch.",
            buckets=SECONDS,
            registry=registry,
        )

    def add_to(self, app: FastAPI) -> None:
        """Count the requests of an application, and add its route /metrics."""
        # All paths without a route count as one, "none": else each would be a new series.
        instrumentator = Instrumentator(should_group_status_codes=False, registry=self.registry)
        instrumentator.instrument(
            app, metric_namespace="roformer", latency_lowr_buckets=SECONDS
        ).expose(
            app,
            summary="Requests, latency and batches for Prometheus",
            response_class=PlainTextResponse,
        )
