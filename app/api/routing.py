"""Which operation a call is for, told before it gets there."""

from starlette.routing import BaseRoute, Match
from starlette.types import Scope


def note_route(scope: Scope) -> None:
    """Note the route of a call that is refused before it is routed, for metrics and audit log."""
    routes: tuple[BaseRoute, ...] = scope["app"].state.routes
    for route in routes:
        match, found = route.matches(scope)
        if match is Match.FULL:
            scope.update(found, route=route)
            return
