"""Prometheus metrics, in a registry of their own so that each application counts apart."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of buckets: from a statement that meets its cache to one that is given up."""


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
        self.refusals = Counter(
            "ctxsnap_http_problems",
            "Problem documents that went out, by their code.",
            ["code"],
            registry=self.registry,
        )
        self.stage_seconds = Histogram(
            "ctxsnap_stage_seconds",
            "Time of each stage of an assembly.",
            ["stage"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.retriever_seconds = Histogram(
            "ctxsnap_retriever_seconds",
            "Time until a retriever has answered, or was given up.",
            ["retriever"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.candidates = Counter(
            "ctxsnap_candidates",
            "Candidates that retrievers returned and the scope admits.",
            ["retriever"],
            registry=self.registry,
        )
        self.tokens_offered = Counter(
            "ctxsnap_offered_tokens",
            "Tokens that the budgets of assemblies left for context.",
            registry=self.registry,
        )
        self.tokens_used = Counter(
            "ctxsnap_used_tokens",
            "Tokens that the items of assembled snapshots took.",
            registry=self.registry,
        )
        self.exclusions = Counter(
            "ctxsnap_exclusions",
            "Chunks and sources that were considered and left out, by reason.",
            ["reason"],
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

        self.admitted_requests = Gauge(
            "ctxsnap_admitted_requests",
            "Requests that assemble or change something, under way now.",
            registry=self.registry,
        )
        self.queued_requests = Gauge(
            "ctxsnap_queued_requests",
            "Requests that wait for their turn now.",
            registry=self.registry,
        )
        self.callers_left = Counter(
            "ctxsnap_callers_left",
            "Requests whose caller left before the answer; their work was ended.",
            registry=self.registry,
        )

        self.pool_size = Gauge(
            "ctxsnap_database_pool_size",
            "Most database connections of this process.",
            registry=self.registry,
        )
        self.pool_in_use = Gauge(
            "ctxsnap_database_pool_in_use",
            "Database connections in use now.",
            registry=self.registry,
        )
        self.pool_wait_seconds = Histogram(
            "ctxsnap_database_pool_wait_seconds",
            "Time until a database connection was free, or the wait was given up.",
            registry=self.registry,
            buckets=_SECONDS,
        )

    def render(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
