"""Each check fails for its own kind of tampering, and no bytes make verifying raise."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from app.canonical import digest_bytes, digest_value
from app.scope.access import RequestedScope, SourcePatterns
from app.scope.vocabulary import Classification, TrustTier
from app.snapshot.snapshot import hash_of, snapshot_id_of
from app.snapshot.verify import Check, Evidence, verify
from tests.unit.snapshot.materials import (
    COUNTER,
    LABEL,
    assembled,
    chunk,
    inline,
    material,
    outcome,
    texts_of,
)

Json = dict[str, Any]
Edit = Callable[[Json], object]

ASSEMBLY = assembled(
    material(
        outcome(
            chunk("a"), chunk("b"), chunk("c", label=replace(LABEL, trust_tier=TrustTier.SKILL))
        ),
        inline=(inline(source_id="drafts/mine"),),
        pinned=(chunk("p"),),
        requested=RequestedScope(
            projects=("booking",),
            groups=(),
            max_classification=Classification.INTERNAL,
            min_trust_tier=TrustTier.TRUSTED_KNOWLEDGE,
            sources=SourcePatterns(deny=("drafts/*",)),
        ),
    )
)
SOUND = Evidence(ASSEMBLY.snapshot.canonical, ASSEMBLY.request, ASSEMBLY.report, texts_of(ASSEMBLY))
DOCUMENT: Json = json.loads(SOUND.canonical)
REPORT: Json = json.loads(ASSEMBLY.report)
NAMES = [
    "schema",
    "hash",
    "id",
    "canonical",
    "request",
    "report",
    "strategy",
    "scope",
    "access",
    "contents",
    "budget",
]


def checks_of(evidence: Evidence) -> dict[str, Check]:
    return {check.name: check for check in verify(evidence, COUNTER.count)}


def failed(evidence: Evidence) -> set[str]:
    return {name for name, check in checks_of(evidence).items() if not check.ok}


def edited(document: Json, *edits: Edit) -> Json:
    changed = copy.deepcopy(document)
    for edit in edits:
        edit(changed)
    return changed


def rewritten(*edits: Edit) -> Evidence:
    """The document changed, its hash and id left as they were."""
    return replace(SOUND, canonical=rfc8785.dumps(edited(DOCUMENT, *edits)))


def with_own_hash(document: Json) -> bytes:
    digest = hash_of(document)
    return rfc8785.dumps({**document, "hash": digest, "snapshotId": snapshot_id_of(digest)})


def forged(*edits: Edit) -> Evidence:
    """The document changed by someone who also sets hash and id."""
    return replace(SOUND, canonical=with_own_hash(edited(DOCUMENT, *edits)))


def forged_report(*edits: Edit, document: tuple[Edit, ...] = ()) -> Evidence:
    """The report changed, and the document made to fit it."""
    report = rfc8785.dumps(edited(REPORT, *edits))

    def bind(changed: Json) -> None:
        changed["budget"]["assembly"]["reportHash"] = digest_bytes(report)

    return replace(forged(*document, bind), report=report)


def put(value: object, *path: str | int) -> Edit:
    def edit(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return edit


def drop(*path: str | int) -> Edit:
    def edit(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        del document[path[-1]]

    return edit


def test_an_untouched_snapshot_passes_every_check_in_a_fixed_order() -> None:
    checks = verify(SOUND, COUNTER.count)
    assert [check.name for check in checks] == NAMES
    assert [check for check in checks if not check.ok] == []
    assert len(DOCUMENT["items"]) == 5


def test_a_file_on_its_own_is_checked_as_far_as_it_goes() -> None:
    checks = verify(Evidence(SOUND.canonical), COUNTER.count)
    assert [check.name for check in checks] == ["schema", "hash", "id", "canonical", "budget"]
    assert all(check.ok for check in checks)
    assert "not counted again" in checks[-1].detail


def test_a_file_may_end_with_a_line_feed() -> None:
    assert failed(replace(SOUND, canonical=SOUND.canonical + b"\n")) == set()


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (put("sha256:" + "0" * 64, "hash"), {"hash"}),
        (put("00000000-0000-8000-8000-000000000000", "snapshotId"), {"id"}),
        (put("6f1c0000-0000-4000-8000-000000000009", "runId"), {"hash", "id"}),
        (put("another@1", "strategy"), {"hash", "id"}),
        (put([{"reason": "denied"}], "exclusions"), {"hash", "id"}),
        (put(["nonsense"], "exclusions"), {"schema"}),
        (drop("items"), {"schema"}),
        (put("x", "items", 0, "class"), {"schema"}),
        (put(1, "unknown"), {"schema"}),
        (put("not a uuid", "runId"), {"schema"}),
    ],
)
def test_a_change_without_a_new_hash_fails_what_no_longer_fits(
    edit: Edit, expected: set[str]
) -> None:
    assert failed(rewritten(edit)) == expected


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ((put(1, "items", 0, "tokens"),), {"budget"}),
        ((put(1, "budget", "usedTokens"),), {"budget"}),
        ((put(10, "budget", "maxTokens"),), {"budget"}),
        ((put(7999, "budget", "reservedForOutput"),), {"budget"}),
        ((put(2, "items", 0, "rank"), put(1, "items", 1, "rank")), {"budget"}),
        ((put(6, "items", 4, "rank"),), {"budget"}),
        ((put("messages", "budget", "format"),), {"budget"}),
        ((put("unheard_of", "budget", "encoding"),), {"budget"}),
        (
            (put("a source id " * 4, "items", 0, "sourceId"),),
            {"budget"},
        ),
        ((put("sha256:0", "budget", "assembly", "requestHash"),), {"request"}),
        ((put("sha256:0", "budget", "assembly", "reportHash"),), {"report"}),
        ((put("sha256:0", "budget", "assembly", "strategyHash"),), {"strategy"}),
        ((put("sha256:" + "0" * 64, "scope", "policy", "predicateHash"),), {"scope"}),
        ((put("other", "scope", "tenantId"),), {"scope"}),
        ((put(["eng"], "scope", "groups"),), {"scope"}),
        ((put("confidential", "scope", "maxClassification"),), {"scope"}),
        ((drop("scope", "minTrustTier"),), {"scope"}),
        ((drop("scope", "sources"),), {"scope"}),
    ],
)
def test_a_change_with_a_new_hash_fails_the_check_of_what_was_changed(
    edits: tuple[Edit, ...], expected: set[str]
) -> None:
    assert failed(forged(*edits)) == expected


@pytest.mark.parametrize(
    "edit",
    [
        put("billing", "items", 2, "project"),
        put("restricted", "items", 2, "classification"),
        put("untrusted-external", "items", 2, "trustTier"),
        put("drafts/a", "items", 2, "sourceId"),
        put("restricted", "items", 0, "classification"),
    ],
)
def test_an_item_out_of_scope_fails(edit: Edit) -> None:
    checks = checks_of(forged(edit))
    assert not checks["scope"].ok
    assert "out of scope" in checks["scope"].detail


def test_a_changed_text_fails() -> None:
    assert SOUND.texts is not None
    item = DOCUMENT["items"][3]
    longer = {**SOUND.texts, item["contentHash"]: "another text, and a longer one than before"}
    assert failed(replace(SOUND, texts=longer)) == {"contents", "budget"}
    original = SOUND.texts[item["contentHash"]]
    as_long = {**SOUND.texts, item["contentHash"]: original.replace("of b", "of c")}
    assert as_long != SOUND.texts
    assert "contents" in failed(replace(SOUND, texts=as_long))


def test_an_erased_text_is_said_to_be_erased() -> None:
    assert SOUND.texts is not None
    gone = DOCUMENT["items"][3]["contentHash"]
    left = {digest: text for digest, text in SOUND.texts.items() if digest != gone}
    checks = checks_of(replace(SOUND, texts=left))
    assert all(check.ok for check in checks.values())
    assert checks["contents"].detail == "4 texts match their digests, 1 are erased"
    assert "texts are missing" in checks["budget"].detail
    assert "5 are erased" in checks_of(replace(SOUND, texts={}))["contents"].detail


def test_a_changed_request_fails() -> None:
    assert SOUND.request is not None
    assert failed(replace(SOUND, request=SOUND.request + b" ")) == {"request"}


def test_a_changed_report_fails() -> None:
    engine = rfc8785.dumps(edited(REPORT, put("another", "engine")))
    assert failed(replace(SOUND, report=engine)) == {"report"}
    strategy = rfc8785.dumps(edited(REPORT, put(2, "strategy", "version")))
    assert failed(replace(SOUND, report=strategy)) == {"report", "strategy"}


PREDICATE = REPORT["scope"]["predicate"]


@pytest.mark.parametrize(
    "predicate",
    [
        {**PREDICATE, "allowPrincipals": ["group:boss", "user:ana"]},
        {**PREDICATE, "allowPrincipals": []},
        {**PREDICATE, "denyPrincipals": []},
        {**PREDICATE, "minTrustTier": None},
        {**PREDICATE, "sources": {"allow": None, "deny": []}},
        {**PREDICATE, "projects": ["*"]},
        {**PREDICATE, "tenantId": "other"},
        {**PREDICATE, "maxClassification": "restricted"},
        {**PREDICATE, "classes": ["code", "documents", "task"]},
    ],
)
def test_a_predicate_that_is_not_the_scope_s_fails_even_when_every_hash_fits(
    predicate: Json,
) -> None:
    digest = digest_value(predicate)

    def fit(report: Json) -> None:
        report["scope"]["predicate"] = predicate
        report["scope"]["policy"]["predicateHash"] = digest
        for leg in report["retrievers"]:
            leg["predicateHash"] = digest

    evidence = forged_report(fit, document=(put(digest, "scope", "policy", "predicateHash"),))
    assert failed(evidence) == {"scope"}


def test_a_leg_that_was_given_another_predicate_fails() -> None:
    edit = put("sha256:" + "0" * 64, "retrievers", 0, "predicateHash")
    checks = checks_of(forged_report(edit))
    assert {name for name, check in checks.items() if not check.ok} == {"scope"}
    assert "lexical" in checks["scope"].detail


def test_bytes_in_another_form_fail() -> None:
    for other in (
        json.dumps(DOCUMENT, indent=1).encode(),
        json.dumps(dict(reversed(DOCUMENT.items())), separators=(",", ":")).encode(),
        SOUND.canonical.replace(b'"runId"', b'"\\u0072unId"'),
        SOUND.canonical.replace(b'{"attemptId"', b'{"attemptId":"x","attemptId"'),
    ):
        assert failed(replace(SOUND, canonical=other)) == {"canonical"}


GARBAGE = (
    b"",
    b" ",
    b"garbage",
    b"\xff\xfe{}",
    b"\x00",
    b"[]",
    b"null",
    b"true",
    b"1",
    b'"text"',
    b"{}",
    b"[" * 900 + b"]" * 900,
    b"[" * 200_000 + b"]" * 200_000,
    b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    b"9" * 10_000,
    b"NaN",
    '{"hash"'.encode("utf-16"),
)


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_what_is_no_snapshot_fails_the_schema_check_alone(garbage: bytes) -> None:
    for evidence in (Evidence(garbage), replace(SOUND, canonical=garbage)):
        (check,) = verify(evidence, COUNTER.count)
        assert (check.name, check.ok) == ("schema", False)
        assert len(check.detail) <= 300


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        (b'"rank":1,', b'"rank":1.0,'),
        (b'"rank":1,', b'"rank":1.5,'),
        (b'"rank":1,', b'"rank":NaN,'),
        (b'"rank":1,', b'"rank":1e400,'),
        (b'"rank":1,', b'"rank":9007199254740993,'),
        (b'"rank":1,', b'"rank":1,"x":"\\ud800",'),
        (b'"rank":1,', b'"rank":1,"\\ud800":1,'),
        (b'"rank":1,', b'"rank":1,"x":' + b"[" * 400 + b"]" * 400 + b","),
        (b'"rank":1,', b'"rank":1,"\xc3\xa9":' + b"[" * 900 + b"]" * 900 + b","),
    ],
)
def test_what_has_no_canonical_form_fails(found: bytes, instead: bytes) -> None:
    assert found in SOUND.canonical
    for evidence in (SOUND, Evidence(SOUND.canonical)):
        changed = evidence.canonical.replace(found, instead, 1)
        assert failed(replace(evidence, canonical=changed)) & {"schema", "canonical"}


@pytest.mark.parametrize(
    "edit",
    [
        *(drop("items", 1, name) for name in ("project", "classification", "trustTier")),
        drop("items", 1, "contentHash"),
        put([], "items", 1, "project"),
        drop("budget", "encoding"),
        drop("budget", "format"),
        drop("budget", "assembly"),
        put([], "budget", "assembly"),
        put("x", "budget", "assembly"),
        put({}, "budget", "assembly"),
        put(None, "budget", "encoding"),
    ],
)
def test_members_that_the_given_schema_leaves_open_are_missed(edit: Edit) -> None:
    assert failed(forged(edit))


@pytest.mark.parametrize(
    "report",
    [b"", b"garbage", b"[]", b"null", b"{}", b'{"strategy":1.5}', b"[" * 200_000, b"\xff"],
)
def test_a_report_that_cannot_be_read_fails_what_depends_on_it(report: bytes) -> None:
    expected = {"report", "strategy", "scope", "access"}
    assert failed(replace(SOUND, report=report)) == expected
    bound = forged(put(digest_bytes(report), "budget", "assembly", "reportHash"))
    assert failed(replace(bound, report=report)) == expected - {"report"}


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(found for step, part in inner for found in paths_of(part, (*path, step)))]


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**53 - 1) | st.text("aé*\n", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=4,
)
somewhere_in_document = st.sampled_from([path for path in paths_of(DOCUMENT) if path])
somewhere_in_report = st.sampled_from([path for path in paths_of(REPORT) if path])


@examples(max_examples=60)
@given(path=somewhere_in_document, value=anything)
def test_any_changed_member_of_the_document_fails_a_check(
    path: tuple[str | int, ...], value: Any
) -> None:
    for edit in (put(value, *path), drop(*path)):
        changed = edited(DOCUMENT, edit)
        if changed != DOCUMENT:
            assert failed(replace(SOUND, canonical=rfc8785.dumps(changed)))
            verify(replace(SOUND, canonical=with_own_hash(changed)), COUNTER.count)


@examples(max_examples=60)
@given(path=somewhere_in_report, value=anything)
def test_any_changed_member_of_the_report_fails_a_check(
    path: tuple[str | int, ...], value: Any
) -> None:
    for edit in (put(value, *path), drop(*path)):
        changed = edited(REPORT, edit)
        if changed != REPORT:
            assert "report" in failed(replace(SOUND, report=rfc8785.dumps(changed)))
            verify(forged_report(edit), COUNTER.count)
