"""Prometheus metrics, in a registry of their own so that each application counts apart."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest


class Metrics:
    """What the service counts; names follow Prometheus' conventions."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ctxsnap_http_requests",
            "Requests by route, method and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "ctxsnap_http_request_seconds",
            "Time to answer a request.",
            ["method", "route"],
            registry=self.registry,
        )
        self.degraded = Counter(
            "ctxsnap_degraded_retrievals",
            "Legs that gave no answer while the snapshot went on without them.",
            ["retriever", "reason"],
            registry=self.registry,
        )
        self.out_of_scope = Counter(
            "ctxsnap_out_of_scope_candidates",
            "Candidates that a retriever returned although the scope does not admit them.",
            ["retriever"],
            registry=self.registry,
        )
        self.audit_failures = Counter(
            "ctxsnap_audit_failures",
            "Calls that could not be written to the audit log, and were refused for it.",
            registry=self.registry,
        )

    def render(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
