"""Documents in SQLite's full-text index, searched under a predicate: how it can be done.

The predicate is a condition of the search itself, with every value bound. A score counts the
query's distinct words: nothing in it depends on what the predicate does not admit.
"""

import hashlib
import json
import re
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.scope.vocabulary import Classification, TrustTier

Json = dict[str, Any]

_SCHEMA = """
    CREATE VIRTUAL TABLE words USING fts5 (text);
    CREATE TABLE chunks (
        id INTEGER PRIMARY KEY, tenant TEXT, project TEXT, source_id TEXT, revision TEXT,
        chunk_id TEXT, ordinal INTEGER, class TEXT, classification INTEGER, trust_tier INTEGER,
        allow_list TEXT, deny_list TEXT, text TEXT
    );
"""
_ADMITTED = """
    c.tenant = :tenant
    AND (:every_project OR c.project IN (SELECT value FROM json_each(:projects)))
    AND c.class IN (SELECT value FROM json_each(:classes))
    AND c.classification <= :classification AND c.trust_tier <= :floor AND c.trust_tier >= :ceiling
    AND (c.allow_list IS NULL OR EXISTS (
        SELECT 1 FROM json_each(c.allow_list) a JOIN json_each(:allowed) b ON a.value = b.value))
    AND NOT EXISTS (
        SELECT 1 FROM json_each(c.deny_list) a JOIN json_each(:denied) b ON a.value = b.value)
    AND (:allow_sources IS NULL OR EXISTS (
        SELECT 1 FROM json_each(:allow_sources) p WHERE c.source_id GLOB p.value))
    AND NOT EXISTS (SELECT 1 FROM json_each(:deny_sources) p WHERE c.source_id GLOB p.value)
"""
_SEARCH = f"""
    SELECT c.*, count(*) AS score FROM json_each(:terms) t
    JOIN words w ON w.text MATCH t.value JOIN chunks c ON c.id = w.rowid
    WHERE {_ADMITTED} GROUP BY c.id
    ORDER BY score DESC, c.source_id, c.project, c.ordinal LIMIT :k
"""
_VISIBLE = f"SELECT c.* FROM chunks c WHERE {_ADMITTED} ORDER BY c.project, c.source_id, c.ordinal"


class SqliteStore:
    """One database for all tenants; calls may come from any thread."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.executescript(_SCHEMA)
        self._lock = threading.Lock()

    def close(self) -> None:
        self._connection.close()

    def put(self, tenant: str, sources: Iterable[Json]) -> None:
        """Sources as PUT /sources takes them, with their chunks or their text as the only one."""
        with self._lock, self._connection:
            for source in sources:
                self._remove(tenant, source["project"], source["sourceId"])
                chunks = source.get("chunks") or [{"chunkId": "0", "text": source["text"]}]
                for ordinal, chunk in enumerate(chunks):
                    self._add(tenant, source, ordinal, chunk)

    def remove(self, tenant: str, project: str, source_id: str) -> None:
        with self._lock, self._connection:
            self._remove(tenant, project, source_id)

    def search(self, asked: Json) -> Json:
        """An answer of the contract for a query of it."""
        arguments = _arguments(asked)
        with self._lock:
            found = self._connection.execute(_SEARCH, arguments).fetchall()
            visible = self._connection.execute(_VISIBLE, arguments).fetchall()
        state = json.dumps([_candidate(row) for row in visible], sort_keys=True)
        return {
            "visibleVersion": hashlib.sha256(state.encode()).hexdigest()[:32],
            "candidates": [_candidate(row) | {"score": row["score"]} for row in found],
        }

    def _add(self, tenant: str, source: Json, ordinal: int, chunk: Json) -> None:
        acl = source.get("acl", {})
        cursor = self._connection.execute("INSERT INTO words (text) VALUES (?)", (chunk["text"],))
        self._connection.execute(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                cursor.lastrowid,
                tenant,
                source["project"],
                source["sourceId"],
                source["sourceRevision"],
                chunk["chunkId"],
                ordinal,
                source["class"],
                Classification(source.get("classification", "internal")).rank,
                TrustTier(source.get("trustTier", "trusted-knowledge")).rank,
                json.dumps(acl["allow"]) if "allow" in acl else None,
                json.dumps(acl.get("deny", [])),
                chunk["text"],
            ),
        )

    def _remove(self, tenant: str, project: str, source_id: str) -> None:
        named = (tenant, project, source_id)
        where = "tenant = ? AND project = ? AND source_id = ?"
        self._connection.execute(
            f"DELETE FROM words WHERE rowid IN (SELECT id FROM chunks WHERE {where})", named
        )
        self._connection.execute(f"DELETE FROM chunks WHERE {where}", named)


def _arguments(asked: Json) -> Json:
    predicate = asked["predicate"]
    floor = predicate["minTrustTier"] or "untrusted-external"
    allow, deny = predicate["sources"]["allow"], predicate["sources"]["deny"]
    words = sorted(set(re.findall(r"\w+", asked["query"])))
    return {
        "tenant": predicate["tenantId"],
        "every_project": predicate["projects"] == ["*"],
        "projects": json.dumps(predicate["projects"]),
        "classes": json.dumps(predicate["classes"]),
        "classification": Classification(predicate["maxClassification"]).rank,
        "floor": TrustTier(floor).rank,
        "ceiling": TrustTier(asked["maxTrustTier"]).rank,
        "allowed": json.dumps(predicate["allowPrincipals"]),
        "denied": json.dumps(predicate["denyPrincipals"]),
        "allow_sources": None if allow is None else json.dumps([_glob(one) for one in allow]),
        "deny_sources": json.dumps([_glob(one) for one in deny]),
        "terms": json.dumps([f'"{word}"' for word in words]),
        "k": asked["k"],
    }


def _glob(pattern: str) -> str:
    """GLOB has two more signs than `*`."""
    return re.sub(r"[?\[]", lambda found: f"[{found[0]}]", pattern)


def _candidate(row: sqlite3.Row) -> Json:
    acl: Json = {"deny": json.loads(row["deny_list"])}
    if row["allow_list"] is not None:
        acl["allow"] = json.loads(row["allow_list"])
    return {
        "tenantId": row["tenant"],
        "project": row["project"],
        "sourceId": row["source_id"],
        "sourceRevision": row["revision"],
        "chunkId": row["chunk_id"],
        "ordinal": row["ordinal"],
        "class": row["class"],
        "classification": Classification.of_rank(row["classification"]).value,
        "trustTier": TrustTier.of_rank(row["trust_tier"]).value,
        "acl": acl,
        "text": row["text"],
        "contentHash": "sha256:" + hashlib.sha256(row["text"].encode()).hexdigest(),
    }
