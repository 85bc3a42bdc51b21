"""The port to what was, and is, stored of sources' access: facts to check snapshots against."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from app.scope.label import Label

SourceName = tuple[str, str]
"""Project and source id."""

IndexVersion = NewType("IndexVersion", int)


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """A source as it was at a version of the index, and the label it has now or had last."""

    revision: str
    label: Label
    present_label: Label


class SourceHistory(Protocol):
    async def facts(
        self, tenant: str, version: IndexVersion, names: Sequence[SourceName]
    ) -> Mapping[SourceName, SourceFacts]:
        """The facts of those sources that were live at the version."""

    async def oldest_version(self, tenant: str) -> IndexVersion:
        """From which version on facts are kept whole."""
