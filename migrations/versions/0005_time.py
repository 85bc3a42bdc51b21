"""Time and outside answers: newer revisions, originals, erasure, compaction, inputs."""

from alembic import op

from migrations.tenancy import grant, isolate_by_tenant

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

STATEMENTS = (
    # That a newer revision of a source exists, between two versions of the index; whether
    # the source itself is indexed is not looked at.
    """
    CREATE TABLE source_heads (
        tenant_key integer NOT NULL,
        project text COLLATE "C" NOT NULL,
        source_id text COLLATE "C" NOT NULL,
        revision text COLLATE "C" NOT NULL,
        valid_from bigint NOT NULL,
        valid_to bigint NOT NULL DEFAULT 9223372036854775807,
        PRIMARY KEY (tenant_key, project, source_id, valid_to)
    )
    """,
    # The text that a source was cut from: another chunker starts from it.
    """
    CREATE TABLE source_originals (
        tenant_key integer NOT NULL,
        project text COLLATE "C" NOT NULL,
        source_id text COLLATE "C" NOT NULL,
        digest bytea NOT NULL,
        text text NOT NULL,
        PRIMARY KEY (tenant_key, project, source_id, digest)
    )
    """,
    # Which of them a source was cut from; null for one that came in chunks.
    "ALTER TABLE source_versions ADD COLUMN original bytea",
    # Set once its texts were removed for good.
    "ALTER TABLE source_versions ADD COLUMN erased boolean NOT NULL DEFAULT false",
    # The engine that a source was prepared by; null before this column was.
    "ALTER TABLE source_versions ADD COLUMN engine text",
    # A signature of the text in which near-duplicates differ in few bits.
    "ALTER TABLE chunks ADD COLUMN signature bigint",
    # Answers from outside (query vectors, scores), as canonical bytes: a replay takes them
    # from here.
    "ALTER TABLE snapshots ADD COLUMN inputs bytea NOT NULL DEFAULT '\\x7b7d'",
    # What was before this version is no longer kept: it is refused first, and removed
    # later; up to `compacted_version` it is gone.
    "ALTER TABLE tenants ADD COLUMN oldest_version bigint NOT NULL DEFAULT 0",
    "ALTER TABLE tenants ADD COLUMN compacted_version bigint NOT NULL DEFAULT 0",
    # What ended is looked for by when it did; of what lives there is nothing in these.
    """
    CREATE INDEX source_versions_by_end ON source_versions (tenant_key, valid_to, source_key)
    WHERE valid_to < 9223372036854775807
    """,
    """
    CREATE INDEX source_heads_by_end ON source_heads (tenant_key, valid_to)
    WHERE valid_to < 9223372036854775807
    """,
    # Removing a source version would ask whether a chunk of it is left, and read all of the
    # tenant's; an index for that question drew other look-ups away from the key.
    "ALTER TABLE chunks DROP CONSTRAINT chunks_tenant_key_source_key_fkey",
    # The planner needs no samples of these, and what it keeps would outlive an erasure.
    "ALTER TABLE source_contents ALTER COLUMN text SET STATISTICS 0",
    "ALTER TABLE source_originals ALTER COLUMN text SET STATISTICS 0",
    "ALTER TABLE snapshot_contents ALTER COLUMN text SET STATISTICS 0",
    "ALTER TABLE chunks ALTER COLUMN terms SET STATISTICS 0",
    "ALTER TABLE source_versions ALTER COLUMN provenance SET STATISTICS 0",
    "ALTER TABLE source_versions ALTER COLUMN links SET STATISTICS 0",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
    rights = {
        "source_heads": "SELECT, INSERT, UPDATE, DELETE",
        "source_originals": "SELECT, INSERT, DELETE",
    }
    for table, granted in rights.items():
        isolate_by_tenant(table)
        grant(table, granted)
    # Erasing and compacting remove what the index no longer needs; snapshots are not touched.
    grant("chunks", "DELETE")
    grant("ended_postings", "DELETE")
    grant("source_versions", "DELETE")
    grant("label_states", "DELETE")
    grant("index_versions", "DELETE")
