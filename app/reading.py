"""Reading snapshots back: each call authorises by what the reader's grant admits today.

Guarantees: what a reader may not know is answered like what does not exist.
"""

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.canonical import JsonValue
from app.errors import CorruptRecordError, NotFoundError
from app.packing.rendering import fence_marker, render
from app.packing.tokens import TokenCounter
from app.retrieval.external import external_legs, leg_of, recorded_labels
from app.scope.access import whole_grant
from app.scope.grant import Grant
from app.snapshot.compression import Compression, compressions
from app.snapshot.diff import Difference, Side, diff
from app.snapshot.explain import Explanation, explain
from app.snapshot.snapshot import hash_of
from app.snapshot.verify import Check, Evidence, blocks_of, in_prompt_order, predicate_of, verify
from app.storage.labels import IndexVersion, SourceFacts, SourceHistory, SourceName
from app.storage.snapshots import (
    SnapshotFilter,
    SnapshotStore,
    SnapshotSummary,
    StoredSnapshot,
    TextKey,
)


@dataclass(frozen=True, slots=True)
class ItemText:
    """The exact text of one item; None when it was erased."""

    rank: int
    content_hash: str
    text: str | None


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads for a grant; `get` raises NotFoundError outside of it.

    The other methods take what `get` returned for the same grant.
    """

    snapshots: SnapshotStore
    tokens: TokenCounter
    history: SourceHistory

    async def get(self, grant: Grant, ref: str) -> StoredSnapshot:
        stored = await self.snapshots.get(whole_grant(grant).predicate, ref)
        if stored is None:
            raise NotFoundError("No such snapshot.")
        return stored

    async def list_snapshots(
        self, grant: Grant, wanted: SnapshotFilter
    ) -> tuple[SnapshotSummary, ...]:
        return await self.snapshots.list_snapshots(whole_grant(grant).predicate, wanted)

    async def contents(self, grant: Grant, stored: StoredSnapshot) -> tuple[ItemText, ...]:
        """The texts in the order of their ranks."""
        items = json.loads(stored.canonical)["items"]
        texts = await self._texts(grant.tenant, stored, items)
        return tuple(
            ItemText(item["rank"], item["contentHash"], texts.get(item["contentHash"]))
            for item in items
        )

    async def prompt(self, grant: Grant, stored: StoredSnapshot) -> JsonValue:
        """What goes to the model: a text, or a list of messages.

        Raises NotFoundError with code `content-erased` when a text is gone for good.
        """
        document = json.loads(stored.canonical)
        items = document["items"]
        texts = await self._texts(grant.tenant, stored, items)
        if any(item["contentHash"] not in texts for item in items):
            raise NotFoundError(
                "A text of this snapshot was erased, so that its prompt cannot be rendered.",
                code="content-erased",
            )
        return await asyncio.to_thread(_render, items, texts, document["budget"]["format"])

    async def verify(self, grant: Grant, stored: StoredSnapshot) -> tuple[Check, ...]:
        """All checks, and first whether the document is the one of the hash it is kept under."""
        texts, labels, untouched = None, None, _has_its_hash(stored)
        if untouched:
            # Where texts are kept is read from the document, once it is known to be ours.
            items = json.loads(stored.canonical)["items"]
            texts = await self._texts(grant.tenant, stored, items)
            external = _external_legs(stored)
            names = sorted({_name(item) for item in items if _is_indexed(item, external)})
            version = IndexVersion(stored.index_version)
            facts = await self._facts(grant.tenant, version, names)
            labels = None if facts is None else {name: one.label for name, one in facts.items()}
        evidence = Evidence(
            stored.canonical, stored.request, stored.report, texts, labels, stored.inputs
        )
        checks = await asyncio.to_thread(partial(verify, evidence, self.tokens.count))
        return (Check("reference", untouched, f"kept under {stored.hash}"), *checks)

    async def explain(
        self, grant: Grant, stored: StoredSnapshot, project: str, source_id: str
    ) -> tuple[Explanation, ...]:
        """Why a source is in or out; one that the grant does not admit is like no source."""
        version = IndexVersion(stored.index_version)
        facts = await self._facts(grant.tenant, version, [(project, source_id)])
        found = (facts or {}).get((project, source_id))
        own, label = whole_grant(grant).predicate, None
        if found and own.admits_label(found.label) and own.admits_label(found.present_label):
            label = found.label
        predicate = predicate_of(json.loads(stored.report)["scope"]["predicate"])
        document, request = json.loads(stored.canonical), json.loads(stored.request)
        kept = facts is not None
        return explain(
            document,
            request,
            predicate,
            label,
            project,
            source_id,
            is_kept=kept,
            is_external=_is_external(stored, (project, source_id)),
        )

    async def diff(self, before: StoredSnapshot, after: StoredSnapshot) -> tuple[Difference, ...]:
        """Raises CorruptRecordError when a record cannot be read."""
        try:
            return await asyncio.to_thread(lambda: diff(_side(before), _side(after)))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptRecordError("A snapshot's record cannot be read.") from error

    async def _facts(
        self, tenant: str, version: IndexVersion, names: Sequence[SourceName]
    ) -> Mapping[SourceName, SourceFacts] | None:
        """None for all of them where the index no longer keeps the version whole."""
        if version < await self.history.oldest_version(tenant):
            return None
        return await self.history.facts(tenant, version, names)

    async def _texts(
        self, tenant: str, stored: StoredSnapshot, items: list[dict[str, Any]]
    ) -> Mapping[str, str]:
        """Texts by content hash; a text that one source has lost may stand in another."""
        external, shortened = _external_legs(stored), _compressions(stored)
        keys = []
        for item in items:
            one = shortened.get(item["rank"])
            digest = item["contentHash"] if one is None else one.original
            keys.append(TextKey(digest, _name(item) if _is_indexed(item, external) else None))
        found = await self.snapshots.texts(tenant, stored.hash, keys)
        texts = {}
        for item, key in zip(items, keys, strict=True):
            text, one = found.get(key), shortened.get(item["rank"])
            if text is not None:
                texts[item["contentHash"]] = text if one is None else one.text(text)
        return texts


def _name(item: Mapping[str, Any]) -> SourceName:
    return item["project"], item["sourceId"]


def _external_legs(stored: StoredSnapshot) -> Collection[str]:
    try:
        return external_legs(json.loads(stored.report))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        # A report that was tampered with tells of nobody; `verify` says so.
        return ()


def _compressions(stored: StoredSnapshot) -> Mapping[int, Compression]:
    try:
        return compressions(json.loads(stored.report))
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        return {}


def _is_external(stored: StoredSnapshot, source: SourceName) -> bool:
    """Whether a retriever outside of the index brought chunks of this name."""
    recorded = recorded_labels(json.loads(stored.inputs).get("retrievers", {}))
    return any(named[1:3] == source for named in recorded)


def _is_indexed(item: Mapping[str, Any], external: Collection[str]) -> bool:
    """Whether a source in the index stands for the item."""
    return "indexVersion" in item and leg_of(item["indexVersion"]) not in external


def _side(stored: StoredSnapshot) -> Side:
    return Side(json.loads(stored.canonical), json.loads(stored.request), json.loads(stored.report))


def _has_its_hash(stored: StoredSnapshot) -> bool:
    try:
        return hash_of(json.loads(stored.canonical)) == stored.hash
    except (AttributeError, TypeError, ValueError, RecursionError):
        return False


def _render(items: list[dict[str, Any]], texts: Mapping[str, str], format_: str) -> JsonValue:
    blocks = blocks_of(items, texts)
    marker = fence_marker(blocks, (item["contentHash"] for item in items))
    return render(in_prompt_order(items, blocks), marker, format_)
