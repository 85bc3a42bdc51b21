"""The recipes that this service offers."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.parts import Assembler, PartsParameter
from app.api.read_schemas import StrategyPage
from app.api.responses import problems, read_response
from app.api.strict_route import StrictJsonRoute
from app.errors import InvalidRequestError, NotFoundError

_RECIPE = {"schema": {"type": "object"}}

router = APIRouter(prefix="/strategies", tags=["strategies"], route_class=StrictJsonRoute)


@router.get(
    "",
    operation_id="listStrategies",
    summary="List the strategies",
    responses={200: {"model": StrategyPage}, **problems(403, 503)},
)
async def list_strategies(request: Request, _: Assembler, parts: PartsParameter) -> Response:
    recipes = [one.canonical() for one in parts.services.strategies.all()]
    return read_response(request, {"strategies": recipes})


@router.get(
    "/{id}",
    operation_id="getStrategy",
    summary="Read a strategy by id or id@version",
    responses={
        200: {"description": "The recipe", "content": {"application/json": _RECIPE}},
        **problems(403, 404, 503),
    },
)
async def get_strategy(
    id: str,  # noqa: A002 - the path's name
    request: Request,
    _: Assembler,
    parts: PartsParameter,
) -> Response:
    try:
        found = parts.services.strategies.resolve(id)
    except InvalidRequestError as error:
        raise NotFoundError("No such strategy.") from error
    return read_response(request, found.canonical())
