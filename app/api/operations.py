"""Liveness, readiness and metrics: for those who run the service, without a token."""

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from app.api.parts import MetricsParameter, PartsParameter
from app.api.read_schemas import Health, ReadinessAnswer
from app.api.responses import json_response

router = APIRouter(tags=["operations"])

PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json"})


@router.get(
    "/healthz",
    operation_id="getHealth",
    summary="Whether the process answers",
    responses={200: {"model": Health}},
)
async def get_health() -> Response:
    return json_response({"status": "ok"})


@router.get(
    "/readyz",
    operation_id="getReadiness",
    summary="Whether requests can be served, with reasons",
    responses={
        200: {"model": ReadinessAnswer},
        503: {
            "model": ReadinessAnswer,
            "description": "Something does not hold; the reasons name it",
        },
    },
)
async def get_readiness(parts: PartsParameter) -> Response:
    found = await parts.readiness()
    ready = all(one.ok for one in found)
    return json_response(
        {
            "ready": ready,
            "checks": [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in found],
        },
        status=200 if ready else 503,
    )


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Metrics in Prometheus' format",
    response_class=PlainTextResponse,
)
async def get_metrics(metrics: MetricsParameter) -> Response:
    return Response(metrics.render(), media_type="text/plain; version=0.0.4")
