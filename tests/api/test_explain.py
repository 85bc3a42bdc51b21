"""Explaining a source tells what the snapshot shows of it, and of that source alone."""

from tests.api.service import Api, Json, item, question, source

LOW: Json = {"max_classification": "internal"}


async def _stages(api: Api, snapshot: Json, source_id: str, **claims: str) -> list[tuple[str, str]]:
    path = f"/snapshots/{snapshot['hash']}/explain"
    parameters = {"project": "booking", "sourceId": source_id}
    stages = (await api.read(path, parameters, **claims))["stages"]
    return [(stage["stage"], stage["outcome"]) for stage in stages]


async def test_what_a_reader_finds_in_the_snapshot_is_not_explained_as_absent(api: Api) -> None:
    """Its label of then is beyond the reader, its label of now is not."""
    await api.index(*(source(name, "cancel", classification="restricted") for name in "ab"))
    snapshot = await api.assemble(question("cancel", scope={"sources": {"allow": ["a"]}}))
    await api.index(*(source(name, "cancel", sourceRevision="2") for name in "ab"))
    assert await _stages(api, snapshot, "a", **LOW) == [
        ("index", "live"),
        ("scope", "admitted"),
        ("retrieval", "found"),
        ("packing", "item"),
    ]
    assert await _stages(api, snapshot, "b", **LOW) == [("index", "absent")]


async def test_an_inline_item_that_is_left_out_is_no_candidate_of_a_source_of_its_name(
    api: Api,
) -> None:
    await api.index(source("a", "other words"))
    secret = item("a", "x", classification="restricted")
    large = item("a", "word " * 900, chunkId="1", required=False)
    asked = question(
        "cancel",
        items=[secret, large],
        scope={"maxClassification": "internal"},
        budget={"maxTokens": 300},
    )
    snapshot = await api.assemble(asked)
    assert await _stages(api, snapshot, "a") == [
        ("naming", "classification"),
        ("naming", "budget"),
        ("index", "live"),
        ("scope", "admitted"),
        ("retrieval", "not-found"),
    ]
