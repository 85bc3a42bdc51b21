"""Property 7: nothing vanishes, nothing leaks: named sources, duplicates, inline items."""

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.property.access_rules import may_know
from tests.property.service import Service
from tests.property.sizes import sized
from tests.property.worlds import PROJECTS, SOURCE_IDS, Caller, Json, situations


@st.composite
def _pins(draw: st.DrawFn) -> list[Json]:
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "project": st.sampled_from(PROJECTS),
                    "sourceId": st.sampled_from((*SOURCE_IDS, "never-heard-of")),
                    "required": st.just(False),
                }
            ),
            max_size=4,
            unique_by=lambda pin: (pin["project"], pin["sourceId"]),
        )
    )


@sized(40, full=10_000)
@given(situation=situations(), pins=_pins())
async def test_a_named_source_is_in_or_denied_and_a_hidden_one_like_an_unknown_one(
    service: Service, situation: tuple[list[Json], Caller, Json], pins: list[Json]
) -> None:
    sources, caller, request = situation
    tenant = service.make_tenant()
    await service.index(tenant, sources)
    request = {**request, "pins": pins}
    request["budget"] = {**request["budget"], "maxTokens": 20_000}
    answer = await service.assemble(tenant, caller, request)
    assert answer.status_code == 201, answer.text
    snapshot = answer.json()
    known = {
        (source["project"], source["sourceId"]): source
        for source in sources
        if may_know(source, caller, request["scope"])
    }
    denied = [
        (entry["project"], entry["sourceId"], entry["detail"])
        for entry in snapshot["exclusions"]
        if entry["reason"] == "denied"
    ]
    expected = [
        (pin["project"], pin["sourceId"], "not available")
        for pin in pins
        if (pin["project"], pin["sourceId"]) not in known
    ]
    assert sorted(denied) == sorted(expected)
    shown = [(item["project"], item["sourceId"], item["chunkId"]) for item in snapshot["items"]]
    assert len(shown) == len(set(shown))
    for pin in pins:
        source = known.get((pin["project"], pin["sourceId"]))
        for chunk in source["chunks"] if source else []:
            assert (pin["project"], pin["sourceId"], chunk["chunkId"]) in shown


@examples(max_examples=40)
@given(situation=situations(), pins=_pins())
async def test_a_required_pin_that_is_hidden_fails_word_for_word_like_an_unknown_one(
    service: Service, situation: tuple[list[Json], Caller, Json], pins: list[Json]
) -> None:
    sources, caller, request = situation
    tenant, empty = service.make_tenant(), service.make_tenant()
    hidden = [
        {**pin, "required": True}
        for pin in pins
        if not any(
            (source["project"], source["sourceId"]) == (pin["project"], pin["sourceId"])
            and may_know(source, caller, request["scope"])
            for source in sources
        )
    ]
    if not hidden:
        return
    await service.index(tenant, sources)
    answers = [
        (await service.assemble(where, caller, {**request, "pins": hidden})).json()
        for where in (tenant, empty)
    ]
    for answer in answers:
        assert answer["code"] == "pin-unavailable"
        del answer["requestId"]
    assert answers[0] == answers[1]
