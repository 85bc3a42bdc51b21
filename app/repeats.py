"""Which stored snapshot answers a request that came before.

A request is known by its canonical form under its scope, and by the caller's idempotency
key where it sends one. Guarantees: one key of one subject stands for one request; a snapshot
that the caller may not read today is not returned. Not handled here: storing (the pipeline).
"""

from dataclasses import dataclass

from app.canonical import JsonValue, digest_to_bytes, digest_value
from app.errors import ConflictError
from app.pins import told_of_classification
from app.scope.access import AccessScope, whole_grant
from app.scope.grant import Grant
from app.snapshot.request import CreateSnapshot
from app.storage.snapshots import SnapshotStore, StoredSnapshot


@dataclass(frozen=True, slots=True)
class RepeatKeys:
    """What one request is known by, as digests of 32 bytes.

    `request` is of the request under its scope, `idempotency` of the subject with its key, and
    `refreshed` of both: it stands for what `refresh` gave under that key.
    """

    request: bytes
    idempotency: bytes | None = None
    refreshed: bytes | None = None


def repeat_keys(
    grant: Grant, scope: AccessScope, request: CreateSnapshot, idempotency_key: str | None
) -> RepeatKeys:
    known_by: dict[str, JsonValue] = {
        "request": request.canonical(),
        "scope": scope.to_contract(),
        "predicate": scope.predicate.canonical(),
    }
    if request.pins and told_of_classification(grant):
        known_by["toldOf"] = "classification"
    asked = _digest(known_by)
    if idempotency_key is None:
        return RepeatKeys(asked)
    key: dict[str, JsonValue] = {"subject": grant.subject, "idempotencyKey": idempotency_key}
    return RepeatKeys(asked, _digest(key), _digest({**known_by, **key}))


async def find_first(
    snapshots: SnapshotStore, grant: Grant, keys: RepeatKeys, *, refresh: bool
) -> StoredSnapshot | None:
    """The first snapshot of a request, by its key or by itself; by the key alone on `refresh`.

    A key that comes with a request that has a snapshot already is kept with that one.
    Raises ConflictError for a key that was used for another request.
    """
    predicate, key = whole_grant(grant).predicate, keys.idempotency
    if key is not None:
        used_for = await snapshots.find_key(grant.tenant, key)
        if used_for is not None:
            if used_for not in (keys.request, keys.refreshed):
                raise ConflictError(
                    "This Idempotency-Key was used for another request, or under another scope: "
                    "send a new key.",
                    code="idempotency-key-reused",
                )
            return await snapshots.find_repeat(predicate, used_for)
    if refresh:
        return None
    first = await snapshots.find_repeat(predicate, keys.request)
    if first is None or key is None or await snapshots.put_key(grant.tenant, key, keys.request):
        return first
    # Another call was first with this key.
    return await find_first(snapshots, grant, keys, refresh=refresh)


def _digest(value: dict[str, JsonValue]) -> bytes:
    return digest_to_bytes(digest_value(value))
