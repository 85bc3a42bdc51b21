"""The service answers as the access rules say, through every way in and every way to read."""

from collections.abc import Iterator
from itertools import product

from fastapi import FastAPI
from hypothesis import given

from app.metrics import Metrics
from tests.property.access_model import WAYS, AccessModel, Taken, Way
from tests.property.access_stories import OWNER, UNKNOWN, Story, stories
from tests.property.access_world import Name
from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import PROJECTS, Caller


@sized(300, full=20_000)
@given(story=stories())
async def test_every_answer_is_the_one_that_the_access_rules_give(
    service: Service, app: FastAPI, story: Story
) -> None:
    model = AccessModel(service, service.make_tenant())
    left_scope = _left_scope(app.state.metrics)
    assert await model.put(OWNER, story.sources)
    for caller in story.callers:
        await model.assemble(caller, story.request)
    for change in story.changes:
        await model.change(story.writer, change)
    for at, reader in enumerate(story.callers):
        lists = (model.list_snapshots, model.list_sources, model.describe_index)
        await lists[(story.turn + at) % len(lists)](reader)
    for reader, taken, way, name in _readings(model, story):
        await model.read(reader, taken, way, name)
    for caller in story.callers:
        await model.assemble(caller, story.request)
    await _look_back(model, story)
    assert _left_scope(app.state.metrics) == left_scope


async def _look_back(model: AccessModel, story: Story) -> None:
    """Every third story asks for the index as it was for its first snapshot."""
    if model.taken and story.turn % 3 == 0:
        as_of = {"snapshot": next(iter(model.taken))}
        await model.assemble(story.callers[-1], {**story.request, "pins": [], "asOf": as_of})


def _left_scope(metrics: Metrics) -> float | None:
    """How often the backend returned what its filter should have kept out."""
    counter, labels = "ctxsnap_out_of_scope_candidates_total", {"retriever": "lexical"}
    return metrics.registry.get_sample_value(counter, labels)


def _readings(model: AccessModel, story: Story) -> Iterator[tuple[Caller, Taken, Way, Name]]:
    """Each caller reads each snapshot in one way, another in each story."""
    changed = story.changes[0].name
    names = [changed, *model.world.last, changed, (PROJECTS[0], UNKNOWN)]
    pairs = product(story.callers, model.taken.values())
    for at, (reader, taken) in enumerate(pairs, story.turn):
        turns, way = divmod(at, len(WAYS))
        yield reader, taken, WAYS[way], names[turns % len(names)]
