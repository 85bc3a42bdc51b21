"""The versioned index: labels, sources, chunks, postings, fingerprints."""

from alembic import op

from migrations.tenancy import grant, isolate_by_tenant, make_immutable

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = (
    # What a scope admits or not, interned. Principals are `group:…` and `user:…`.
    """
    CREATE TABLE labels (
        tenant_key integer NOT NULL,
        label_key integer NOT NULL,
        project text COLLATE "C" NOT NULL,
        class text COLLATE "C" NOT NULL,
        classification smallint NOT NULL,
        trust_tier smallint NOT NULL,
        allow text[],
        deny text[] NOT NULL,
        digest bytea NOT NULL,
        PRIMARY KEY (tenant_key, label_key),
        UNIQUE (tenant_key, digest)
    )
    """,
    "CREATE INDEX labels_by_project ON labels (tenant_key, project)",
    # One row for each change of a tenant's index; `last_chunk_key` tells which chunks
    # were there, because keys are given out in order under the tenant's lock.
    """
    CREATE TABLE index_versions (
        tenant_key integer NOT NULL,
        version bigint NOT NULL,
        last_chunk_key bigint NOT NULL,
        engine text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (tenant_key, version)
    )
    """,
    # Sums over a label's live rows between two versions: chunks, terms, and four lanes
    # (modulo 2^64) of an additive multiset hash; and how many sources have each language
    # (the empty name: not told).
    """
    CREATE TABLE label_states (
        tenant_key integer NOT NULL,
        label_key integer NOT NULL,
        valid_from bigint NOT NULL,
        valid_to bigint NOT NULL DEFAULT 9223372036854775807,
        sources bigint NOT NULL,
        chunks bigint NOT NULL,
        terms bigint NOT NULL,
        lane_0 bigint NOT NULL,
        lane_1 bigint NOT NULL,
        lane_2 bigint NOT NULL,
        lane_3 bigint NOT NULL,
        languages jsonb NOT NULL,
        PRIMARY KEY (tenant_key, label_key, valid_from)
    )
    """,
    "CREATE INDEX label_states_by_end ON label_states (tenant_key, valid_to, label_key)",
    # One row for each revision, label or attribute that a source had; the row whose
    # valid_to is the greatest bigint is the present one.
    """
    CREATE TABLE source_versions (
        tenant_key integer NOT NULL,
        source_key bigint NOT NULL,
        project text COLLATE "C" NOT NULL,
        source_id text COLLATE "C" NOT NULL,
        revision text COLLATE "C" NOT NULL,
        label_key integer NOT NULL,
        digest bytea NOT NULL,
        media_type text,
        language text,
        provenance text,
        expires_at timestamptz,
        links jsonb NOT NULL,
        first_chunk_key bigint NOT NULL,
        chunks integer NOT NULL,
        terms bigint NOT NULL,
        lanes bigint[] NOT NULL,
        valid_from bigint NOT NULL,
        valid_to bigint NOT NULL DEFAULT 9223372036854775807,
        PRIMARY KEY (tenant_key, source_key),
        FOREIGN KEY (tenant_key, label_key) REFERENCES labels
    )
    """,
    """
    CREATE UNIQUE INDEX source_versions_by_id
    ON source_versions (tenant_key, project, source_id, valid_to)
    """,
    # `terms` lets a replaced chunk's postings be found without another index on them.
    """
    CREATE TABLE chunks (
        tenant_key integer NOT NULL,
        chunk_key bigint NOT NULL,
        source_key bigint NOT NULL,
        ordinal integer NOT NULL,
        chunk_id text COLLATE "C" NOT NULL,
        content_digest bytea NOT NULL,
        cl100k_tokens integer NOT NULL,
        o200k_tokens integer NOT NULL,
        terms bigint[] NOT NULL,
        length integer NOT NULL,
        PRIMARY KEY (tenant_key, chunk_key),
        FOREIGN KEY (tenant_key, source_key) REFERENCES source_versions
    )
    """,
    """
    CREATE TABLE source_contents (
        tenant_key integer NOT NULL,
        project text COLLATE "C" NOT NULL,
        source_id text COLLATE "C" NOT NULL,
        digest bytea NOT NULL,
        text text NOT NULL,
        PRIMARY KEY (tenant_key, project, source_id, digest)
    )
    """,
    # `term` is the first 64 bits of the term's digest, `weight` its frequency (upper 32
    # bits) and the chunk's length in terms (lower 32 bits): fixed widths keep it small.
    """
    CREATE TABLE postings (
        tenant_key integer NOT NULL,
        label_key integer NOT NULL,
        term bigint NOT NULL,
        chunk_key bigint NOT NULL,
        weight bigint NOT NULL,
        PRIMARY KEY (tenant_key, term, label_key, chunk_key) INCLUDE (weight)
    )
    """,
    # Postings of chunks that are no longer live move here, so that what was costs
    # nothing to those who ask about what is.
    """
    CREATE TABLE ended_postings (
        tenant_key integer NOT NULL,
        label_key integer NOT NULL,
        term bigint NOT NULL,
        chunk_key bigint NOT NULL,
        weight bigint NOT NULL,
        valid_to bigint NOT NULL,
        PRIMARY KEY (tenant_key, term, label_key, valid_to, chunk_key) INCLUDE (weight)
    )
    """,
)


def upgrade() -> None:
    for statement in TABLES:
        op.execute(statement)
    rights = {
        "labels": "SELECT, INSERT",
        "index_versions": "SELECT, INSERT",
        "label_states": "SELECT, INSERT, UPDATE",
        "source_versions": "SELECT, INSERT, UPDATE",
        "chunks": "SELECT, INSERT",
        "source_contents": "SELECT, INSERT, DELETE",
        "postings": "SELECT, INSERT, DELETE",
        "ended_postings": "SELECT, INSERT",
    }
    for table, granted in rights.items():
        isolate_by_tenant(table)
        grant(table, granted)
    # Chunk texts are found by digest, and snapshots hold those: a row never changes.
    make_immutable("labels")
