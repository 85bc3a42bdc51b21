"""How commands fail: what is said on standard error, and the exit code.

Exit codes: 1 a check failed, or the service refused the request; 2 the command or its
configuration is not right; 3 the service or its database cannot be reached.
"""

from app.cli.client import RequestRefusedError
from app.cli.terminal import say
from app.errors import ConfigurationError, DeadlineExceededError, ServiceError, UnavailableError

FAILED = 1
MISCONFIGURED = 2
UNREACHABLE = 3

EXIT_CODES = (
    "Exit codes: 0 done; 1 a check failed or the service refused the request; "
    "2 the command or its configuration is not right; 3 the service cannot be reached."
)

_SHOWN_FAULTS = 10
_UNREACHABLE_STATUSES = (502, 503, 504)


def exit_code_of(error: ServiceError) -> int:
    if isinstance(error, RequestRefusedError):
        return UNREACHABLE if error.status in _UNREACHABLE_STATUSES else FAILED
    if isinstance(error, ConfigurationError):
        return MISCONFIGURED
    if isinstance(error, UnavailableError | DeadlineExceededError):
        return UNREACHABLE
    return FAILED


def report(error: ServiceError) -> int:
    """Say what went wrong; the exit code."""
    say(f"Error: {error.detail}")
    if isinstance(error, RequestRefusedError):
        for place, detail in error.faults[:_SHOWN_FAULTS]:
            # The service cuts long sentences; many faults may share one.
            repeated = detail.removesuffix("…") in error.detail
            if not (repeated and place in error.detail):
                say(f"  {place}" if repeated else f"  {place}: {detail}")
        if len(error.faults) > _SHOWN_FAULTS:
            say(f"  … and {len(error.faults) - _SHOWN_FAULTS} more")
        answered = f"  {error.code} (HTTP {error.status})"
        say(answered + (f", request {error.request_id}" if error.request_id else ""))
    return exit_code_of(error)
