"""Structured logs: one JSON object a line, a constant event name with ids and numbers.

Texts, queries and credentials are never logged; what is bound per request is its id.
"""

import logging
import sys

import structlog


def configure_logs(level: str) -> None:
    """Write log lines of at least `level` to standard error."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=_to_standard_error,
        cache_logger_on_first_use=False,
    )


def _to_standard_error(*_: object) -> structlog.WriteLogger:
    """Looked up at each line: who redirects standard error later takes the lines along."""
    return structlog.WriteLogger(sys.stderr)
