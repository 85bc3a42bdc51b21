"""The sources that a request names: their chunks, and what is said of those it cannot have.

Guarantees: a source that is not in scope is answered word for word like one that does not
exist, but to a grant with `audit:read`, which is told when the classification alone keeps
it out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.errors import PinUnavailableError
from app.retrieval.candidate import Chunk
from app.retrieval.fan_out import admits
from app.retrieval.retriever import IndexView, IndexViews, Pin
from app.scope.access import AccessScope
from app.scope.grant import Grant
from app.scope.vocabulary import Classification, Permission
from app.snapshot.snapshot import Exclusion
from app.storage.labels import IndexVersion, SourceHistory, SourceName

NOT_AVAILABLE = "not available"
"""Said of every named source that is not in scope, whether it exists or not."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The chunks of a request's pins, and an exclusion for each pin without one.

    `optional` are the chunks, by identity, that no required pin names; `disclosed` are the
    sources out of scope whose existence an exclusion tells.
    """

    chunks: tuple[Chunk, ...] = ()
    optional: frozenset[tuple[str, str, str]] = frozenset()
    exclusions: tuple[Exclusion, ...] = ()
    disclosed: frozenset[SourceName] = frozenset()


@dataclass(frozen=True, slots=True)
class PinResolver:
    """Looks pins up in a view of the index."""

    views: IndexViews
    history: SourceHistory

    async def resolve(
        self,
        scope: AccessScope,
        view: IndexView,
        pins: Sequence[Pin],
        *,
        told_of_classification: bool,
    ) -> Pinned:
        """Raises PinUnavailableError, naming each required pin that is not in scope."""
        if not pins:
            return Pinned()
        chunks = await self.views.pinned(scope, view, pins)
        # Checked once more here, as every answer of a backend is.
        admitted = tuple(chunk for chunk in chunks if admits(scope.predicate, chunk))
        missing = [
            (at, pin)
            for at, pin in enumerate(pins)
            if not any(_names(pin, chunk) for chunk in admitted)
        ]
        pointers = tuple(f"/pins/{at}" for at, pin in missing if pin.required)
        if pointers:
            raise PinUnavailableError(
                "These pins are not available: " + ", ".join(pointers), pointers=pointers
            )
        names = [(pin.project, pin.source_id) for _, pin in missing]
        above: frozenset[SourceName] = frozenset()
        if names and told_of_classification:
            above = await self._kept_out_by_classification(scope, view, names)
        return Pinned(
            admitted,
            _optional(pins, admitted),
            tuple(
                _above_ceiling(pin, scope)
                if (pin.project, pin.source_id) in above
                else Exclusion(pin.project, pin.source_id, "denied", NOT_AVAILABLE, pin.chunk_id)
                for _, pin in missing
            ),
            above,
        )

    async def _kept_out_by_classification(
        self, scope: AccessScope, view: IndexView, names: Sequence[SourceName]
    ) -> frozenset[SourceName]:
        """Those that the scope would admit, were its ceiling the highest."""
        ceiling = scope.predicate.max_classification
        raised = replace(scope.predicate, max_classification=Classification.RESTRICTED)
        facts = await self.history.facts(scope.tenant, IndexVersion(view.index_version), names)
        return frozenset(
            name
            for name, fact in facts.items()
            if fact.label.classification.rank > ceiling.rank and raised.admits(fact.label, name[1])
        )


def told_of_classification(grant: Grant) -> bool:
    """Whether a named source above the ceiling is `classification` to this caller."""
    return Permission.AUDIT_READ in grant.permissions


def _names(pin: Pin, chunk: Chunk) -> bool:
    return (pin.project, pin.source_id) == (chunk.project, chunk.source_id) and (
        pin.chunk_id in (None, chunk.chunk_id)
    )


def _above_ceiling(pin: Pin, scope: AccessScope) -> Exclusion:
    detail = f"classified above {scope.predicate.max_classification}, the scope's ceiling"
    return Exclusion(pin.project, pin.source_id, "classification", detail, pin.chunk_id)


def _optional(pins: Sequence[Pin], chunks: Sequence[Chunk]) -> frozenset[tuple[str, str, str]]:
    required = [pin for pin in pins if pin.required]
    return frozenset(
        chunk.identity for chunk in chunks if not any(_names(pin, chunk) for pin in required)
    )
