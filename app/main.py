"""The application: `uvicorn --factory app.main:create_app`. Nothing happens at import."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI

from app.api import audit, heads, operations, snapshot_reads, snapshots, sources, strategies
from app.api.middleware.admission import AdmissionMiddleware
from app.api.middleware.audit import AuditMiddleware
from app.api.middleware.body_limit import BodyLimitMiddleware
from app.api.middleware.deadline import DeadlineMiddleware
from app.api.middleware.metrics import MetricsMiddleware
from app.api.middleware.rate_limit import RateLimitMiddleware
from app.api.middleware.request_id import RequestIdMiddleware
from app.api.middleware.scope import ScopeEnforcementMiddleware
from app.api.middleware.trace import TraceMiddleware
from app.api.openapi_document import install_openapi
from app.api.parts import Parts
from app.api.problems import ProblemMiddleware, install_problem_handlers
from app.bootstrap import running_application
from app.config import Settings, read_settings
from app.logs import configure_logs
from app.metrics import Metrics
from app.rate_limits import RateLimits
from app.scope.claims import ClaimNames


class _StartedVerifier:
    """The verifier of the running application: middlewares are made before it starts."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def verify(self, token: str) -> Mapping[str, object]:
        parts: Parts = self._app.state.parts
        return await parts.verifier.verify(token)


def create_app(settings: Settings | None = None) -> FastAPI:
    """An application of its own; it starts and stops what it needs with its lifespan."""
    settings = settings or read_settings()
    configure_logs(settings.log_level)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with running_application(settings, app.state.metrics) as parts:
            app.state.parts = parts
            yield

    app = FastAPI(
        title="Context snapshots",
        version="0.1.0",
        summary="Immutable, hashed bundles of exactly the knowledge that one attempt may use",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    install_openapi(app)
    app.state.metrics = Metrics()
    install_problem_handlers(app)
    modules = (snapshots, snapshot_reads, sources, heads, strategies, audit, operations)
    for module in modules:
        app.include_router(module.router)
    app.state.routes = tuple(route for module in modules for route in module.router.routes)
    # Added from the inside out: the first to see a request is the last one here.
    app.add_middleware(
        BodyLimitMiddleware,
        max_body_bytes=settings.max_body_bytes,
        max_load_bytes=settings.max_load_bytes,
    )
    app.add_middleware(
        AdmissionMiddleware,
        max_concurrent=settings.max_concurrent_requests,
        max_queued=settings.max_queued_requests,
        metrics=app.state.metrics,
    )
    app.add_middleware(
        DeadlineMiddleware,
        timeout_s=settings.request_timeout_s,
        metrics=app.state.metrics,
        public_paths=operations.PUBLIC_PATHS,
    )
    app.add_middleware(
        RateLimitMiddleware,
        limits=RateLimits(
            per_subject=settings.rate_limit_per_minute,
            per_tenant=settings.rate_limit_per_minute_per_tenant,
        ),
    )
    # Twice: what is raised further in is an answer too, of which the audit log tells.
    app.add_middleware(ProblemMiddleware)
    app.add_middleware(AuditMiddleware, metrics=app.state.metrics)
    app.add_middleware(
        ScopeEnforcementMiddleware,
        verifier=_StartedVerifier(app),
        claim_names=ClaimNames(**settings.claim_names),
        public_paths=operations.PUBLIC_PATHS,
    )
    app.add_middleware(ProblemMiddleware)
    app.add_middleware(MetricsMiddleware, metrics=app.state.metrics)
    app.add_middleware(TraceMiddleware)
    app.add_middleware(RequestIdMiddleware)
    return app
