"""Property 1: every snapshot validates against the given schema."""

import json
from pathlib import Path
from typing import Any, cast

from hypothesis import given
from hypothesis import settings as examples
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.property.service import Service
from tests.property.worlds import Caller, Json, situations

_SCHEMAS = Path(__file__).parents[2] / "openapi" / "schemas"


def _validator() -> Draft202012Validator:
    snapshot, scope = (
        json.loads((_SCHEMAS / name).read_text())
        for name in ("context-snapshot.schema.json", "execution-scope.schema.json")
    )
    registry: Registry[Json] = Registry().with_resource(scope["$id"], Resource.from_contents(scope))
    return Draft202012Validator(
        snapshot, registry=cast("Any", registry), format_checker=Draft202012Validator.FORMAT_CHECKER
    )


@examples(max_examples=40)
@given(situation=situations())
async def test_every_snapshot_validates_against_the_contract(
    service: Service, situation: tuple[list[Json], Caller, Json]
) -> None:
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    answer = await service.assemble(tenant, caller, request)
    assert answer.status_code == 201, answer.text
    _validator().validate(answer.json())


def test_the_schema_refuses_what_it_should() -> None:
    """The validator of this suite can fail: an unknown member and a wrong id are refused."""
    validator = _validator()
    assert not validator.is_valid({"snapshotId": "no-uuid"})
