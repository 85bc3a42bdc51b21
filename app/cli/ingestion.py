"""Bringing files into the index: what has changed is sent, in batches, and tallied.

Guarantees: a file is read once and sent as it is; what the index has at the same revision
under the same label is not sent again. A batch is all or nothing, and what was tallied
before an error is in the index.

Not handled: removing sources whose files are gone.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.cli.batches import MAX_SOURCE_BYTES, Batch, batched
from app.cli.client import RequestRefusedError, ServiceClient
from app.cli.files import Selection, Skipped, SourceFile
from app.cli.git_revision import Committed, committed_files, revision_of
from app.cli.media_types import kind_of
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier

MAX_FILE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Labelling:
    """As what files are ingested; None leaves it to the file's ending or to the service."""

    project: str
    knowledge_class: KnowledgeClass | None = None
    classification: Classification | None = None
    trust_tier: TrustTier | None = None
    allow: tuple[str, ...] | None = None

    def label(self, source_id: str) -> dict[str, Any]:
        media_type, usual_class = kind_of(source_id)
        label: dict[str, Any] = {
            "class": (self.knowledge_class or usual_class).value,
            "mediaType": media_type,
        }
        if self.classification is not None:
            label["classification"] = self.classification.value
        if self.trust_tier is not None:
            label["trustTier"] = self.trust_tier.value
        return label


@dataclass(frozen=True, slots=True)
class Limits:
    """`resend` sends what seems unchanged too, `dry_run` sends nothing."""

    max_file_bytes: int = MAX_FILE_BYTES
    resend: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file: `added`, `replaced` or `unchanged`."""

    source_id: str
    revision: str
    what: str


@dataclass(slots=True)
class Tally:
    """What was done so far; it grows with each batch."""

    outcomes: list[Outcome] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    index_version: int | None = None

    def count(self, what: str) -> int:
        return sum(outcome.what == what for outcome in self.outcomes)


@dataclass(slots=True)
class Ingestion:
    """One run over the files of a selection; `advance` is called once for each file."""

    client: ServiceClient
    labelling: Labelling
    limits: Limits = field(default_factory=Limits)
    advance: Callable[[], None] = lambda: None
    tally: Tally = field(default_factory=Tally)

    def run(self, selection: Selection) -> None:
        """Send what is new or has changed. Raises ServiceError when the service refuses."""
        self.tally.skipped.extend(selection.skipped)
        indexed = self._indexed(selection.files)
        for batch in batched(self._changed(selection.files, indexed)):
            unchanged = [False] * len(batch.entries)
            if not self.limits.dry_run:
                unchanged = self._put(batch)
            for (source_id, revision), same in zip(batch.entries, unchanged, strict=True):
                what = "replaced" if source_id in indexed else "added"
                self._count(source_id, revision, "unchanged" if same else what)

    def _indexed(self, files: tuple[SourceFile, ...]) -> Mapping[str, dict[str, Any]]:
        """What the index has under the files' ids."""
        if not files:
            return {}
        ids = {file.source_id for file in files}
        # By characters, as the service's prefixes are, not by folders.
        prefix = os.path.commonprefix(list(ids))  # noqa: RUF071
        found = self.client.sources(self.labelling.project, prefix)
        return {source["sourceId"]: source for source in found if source["sourceId"] in ids}

    def _changed(
        self, files: tuple[SourceFile, ...], indexed: Mapping[str, dict[str, Any]]
    ) -> Iterator[tuple[tuple[str, str], bytes]]:
        committed = _committed(files)
        for file in files:
            self.advance()
            read = _read(file.path, self.limits.max_file_bytes)
            if isinstance(read, str):
                self._skip(file, read)
                continue
            content, text = read
            revision = revision_of(content, committed.get(file.path))
            label = self.labelling.label(file.source_id)
            if self._is_indexed(indexed.get(file.source_id), revision, label):
                self._count(file.source_id, revision, "unchanged")
                continue
            encoded = self._encode(file.source_id, revision, label, text)
            if len(encoded) > MAX_SOURCE_BYTES:
                self._skip(file, f"larger than {MAX_SOURCE_BYTES} bytes as JSON")
                continue
            yield (file.source_id, revision), encoded

    def _is_indexed(
        self, known: Mapping[str, Any] | None, revision: str, label: Mapping[str, Any]
    ) -> bool:
        # Access lists are not listed: with one, only the service can tell.
        if known is None or self.limits.resend or self.labelling.allow is not None:
            return False
        return known["sourceRevision"] == revision and all(
            known.get(name) == value for name, value in label.items()
        )

    def _encode(self, source_id: str, revision: str, label: Mapping[str, Any], text: str) -> bytes:
        source: dict[str, Any] = {
            "sourceId": source_id,
            "sourceRevision": revision,
            "project": self.labelling.project,
            **label,
            "text": text,
        }
        if self.labelling.allow is not None:
            source["acl"] = {"allow": list(self.labelling.allow)}
        return json.dumps(source, ensure_ascii=False, separators=(",", ":")).encode()

    def _put(self, batch: Batch[tuple[str, str]]) -> list[bool]:
        """Whether each source of a batch was there already."""
        try:
            change = self.client.put_sources(batch.body)
        except RequestRefusedError as error:
            raise _named(error, batch) from error
        self.tally.index_version = change["indexVersion"]
        return [source["unchanged"] for source in change["sources"]]

    def _count(self, source_id: str, revision: str, what: str) -> None:
        self.tally.outcomes.append(Outcome(source_id, revision, what))

    def _skip(self, file: SourceFile, reason: str) -> None:
        self.tally.skipped.append(Skipped(os.fspath(file.path), reason))


def _committed(files: tuple[SourceFile, ...]) -> Mapping[Path, Committed]:
    by_base: dict[Path, dict[str, Path]] = {}
    for file in files:
        by_base.setdefault(file.base, {})[file.name] = file.path
    return {
        paths[name]: committed
        for base, paths in by_base.items()
        for name, committed in committed_files(base, paths).items()
    }


def _read(path: Path, max_bytes: int) -> tuple[bytes, str] | str:
    """A file's bytes and text, or why it is left out."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if len(content) > max_bytes:
        return f"larger than {max_bytes} bytes"
    if b"\0" in content:
        return "binary"
    try:
        return content, content.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"


def _named(error: RequestRefusedError, batch: Batch[tuple[str, str]]) -> RequestRefusedError:
    """The same refusal, its places in the request told by the sources that stand there."""

    def name(place: str) -> str:
        parts = place.split("/")
        if parts[:2] == ["", "sources"] and len(parts) > 2 and parts[2].isdecimal():
            at = int(parts[2])
            if at < len(batch.entries):
                return " ".join([batch.entries[at][0], *parts[3:]])
        return place

    error.faults = tuple((name(place), detail) for place, detail in error.faults)
    return error
