"""The bodies of PUT /sources/heads, and their way into the core."""

from typing import Any

from pydantic import Field

from app.api.shared_schemas import Project, Revision, SourceId, project_or_only
from app.api.source_schemas import only_project, refuse_repeated
from app.api.strict_model import StrictModel
from app.indexing.index import Head
from app.scope.grant import Grant

MAX_HEADS = 10_000
PUT_HEADS_EXAMPLES: dict[str, Any] = {
    "commit": {
        "summary": "A commit has changed two files",
        "value": {
            "heads": [
                {"project": "booking", "sourceId": "docs/refunds.md", "sourceRevision": "4f1d2c9"},
                {"project": "booking", "sourceId": "docs/prices.md", "sourceRevision": "4f1d2c9"},
            ]
        },
    }
}


class HeadBody(StrictModel):
    """The newest revision of a source, which need not be indexed."""

    project: Project | None = None
    source_id: SourceId
    source_revision: Revision


class PutHeadsBody(StrictModel):
    """Newest revisions to take note of, all or none."""

    heads: tuple[HeadBody, ...] = Field(min_length=1, max_length=MAX_HEADS)

    def to_core(self, grant: Grant) -> tuple[Head, ...]:
        """Raises InvalidRequestError for a source that stands twice."""
        only = only_project(grant)
        heads = tuple(
            Head(
                project_or_only(head.project, only, f"/heads/{at}/project"),
                head.source_id,
                head.source_revision,
            )
            for at, head in enumerate(self.heads)
        )
        refuse_repeated([head.key for head in heads], "/heads")
        return heads


class HeadChangeBody(StrictModel):
    """What became of one head."""

    project: str
    source_id: str
    unchanged: bool


class HeadsChangeBody(StrictModel):
    """The tenant's index version after the call."""

    index_version: int
    heads: tuple[HeadChangeBody, ...]
