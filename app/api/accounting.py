"""What an assembly leaves in the metrics and the log: numbers, and names that operators gave."""

from collections import Counter

import structlog

from app.metrics import Metrics
from app.pipeline import Answer
from app.snapshot.assembly import Assembly

_log = structlog.get_logger()


def account(answer: Answer, metrics: Metrics) -> None:
    """Count what was assembled; of a repeat there is nothing to tell."""
    if isinstance(answer.source, Assembly):
        metrics.tokens_offered.inc(answer.capacity_tokens)
        metrics.tokens_used.inc(sum(item.tokens for item in answer.source.items))
        for reason, found in Counter(one.reason for one in answer.source.exclusions).items():
            metrics.exclusions.labels(reason).inc(found)
    for stage, milliseconds in answer.timings_ms.items():
        metrics.stage_seconds.labels(stage).observe(milliseconds / 1000)
    for leg in answer.outcomes:
        metrics.retriever_seconds.labels(leg.name).observe(leg.seconds)
        if leg.retrieval is not None:
            metrics.candidates.labels(leg.name).inc(len(leg.retrieval.candidates))
        if leg.dropped:
            metrics.out_of_scope.labels(leg.name).inc(leg.dropped)
            _log.error("retriever_left_its_scope", retriever=leg.name, dropped=leg.dropped)
    for leg in answer.degraded:
        metrics.degraded.labels(leg.name, leg.status).inc()
        _log.warning(
            "retriever_failed",
            retriever=leg.name,
            status=leg.status,
            error_type=type(leg.failure).__name__,
        )
