"""What the report's stages are digests of, made anew from what the snapshot shows."""

from collections.abc import Sequence

from app.canonical import Digest, digest_value
from tests.api.service import Json


def digest_of(report: Json, stage: str) -> str:
    (found,) = [one["digest"] for one in report["stages"] if one["name"] == stage]
    return str(found)


def fusion_digest(snapshot: Json, scores: Sequence[int]) -> Digest:
    """The digest of a ranking whose candidates are all items, in the order of their ranks."""
    names = ("project", "sourceId", "chunkId", "sourceRevision", "contentHash")
    return digest_value(
        [
            [*(item[name] for name in names), score]
            for item, score in zip(snapshot["items"], scores, strict=True)
        ]
    )
