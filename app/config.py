"""Settings: read once from the environment (`CTXSNAP_*`), frozen, and passed on.

Every field is described here, and the README's table is checked against these
descriptions.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from app.errors import ConfigurationError

Tier = Literal[
    "system-policy",
    "agent",
    "skill",
    "user",
    "trusted-knowledge",
    "tool-result",
    "untrusted-external",
]


class IssuerSettings(BaseModel):
    """One issuer of tokens, with exactly one source of keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str = Field(min_length=1)
    audiences: tuple[str, ...] = Field(min_length=1)
    jwks_file: Path | None = None
    jwks_url: str | None = None
    hs256_secret: SecretStr | None = None
    algorithms: tuple[str, ...] = ()


class EmbeddingSettings(BaseModel):
    """An endpoint that computes vectors, and the profile that they are computed under."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(pattern=r"^https?://[^\s]+$")
    model: str = Field(min_length=1)
    dimensions: int = Field(ge=1, le=4000)
    key: SecretStr | None = None
    query_prefix: str = ""
    passage_prefix: str = ""
    normalise: bool = True
    input_type: bool = False
    batch: int = Field(32, ge=1, le=2048)
    deadline_ms: int = Field(60_000, ge=1, le=600_000)
    trust_env: bool = False


class RerankingSettings(BaseModel):
    """An endpoint that tells how relevant texts are to a query."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(pattern=r"^https?://[^\s]+$")
    model: str = Field(min_length=1)
    shape: Literal["cohere", "tei"] = "cohere"
    key: SecretStr | None = None
    batch: int = Field(32, ge=1, le=1000)
    deadline_ms: int = Field(60_000, ge=1, le=600_000)
    trust_env: bool = False


class RetrieverSettings(BaseModel):
    """A retriever outside of the service's own database, and how it is treated."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    type: str = Field(min_length=1)
    url: str | None = Field(None, pattern=r"^https?://[^\s]+$")
    key: SecretStr | None = None
    max_trust_tier: Tier = "untrusted-external"
    retries: int = Field(2, ge=0, le=10)
    concurrency: int = Field(16, ge=1, le=1000)
    breaker_failures: int = Field(5, ge=1, le=1000)
    breaker_reset_s: float = Field(30.0, gt=0, le=3600)
    max_bytes: int = Field(8 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    trust_env: bool = False
    options: dict[str, str] = Field(default_factory=dict)


class Settings(BaseSettings):
    """What the service is told from outside."""

    model_config = SettingsConfigDict(
        env_prefix="CTXSNAP_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on.")
    data_dir: Path = Field(
        Path(".ctxsnap"),
        description="Folder of the embedded database and of the local development key.",
    )
    database_url: SecretStr | None = Field(
        None,
        description="PostgreSQL URL of the serving role. Absent: the embedded database.",
    )
    migration_database_url: SecretStr | None = Field(
        None,
        description="PostgreSQL URL of the owner's role, for `ctxsnap migrate`.",
    )
    serving_role: str = Field(
        "ctxsnap_service",
        min_length=1,
        description="Name of the serving role, to which migrations grant its rights.",
    )
    database_pool_size: int = Field(
        10, ge=1, le=1000, description="Most database connections of one process."
    )
    database_pool_timeout_s: float = Field(
        5.0, gt=0, description="Seconds to wait for a free connection before 503."
    )
    database_statement_timeout_s: float = Field(
        30.0, gt=0, description="Seconds that one statement may take."
    )
    database_pooling: Literal["session", "transaction"] = Field(
        "session",
        description="`transaction` behind pgbouncer in transaction mode.",
    )
    max_body_bytes: int = Field(
        8 * 1024 * 1024, ge=1024, description="Largest request body, in bytes."
    )
    max_load_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="Largest NDJSON body of PUT /sources, in bytes."
    )
    max_concurrent_requests: int = Field(
        32,
        ge=1,
        le=10_000,
        description="Most requests of one process at once that assemble or change something.",
    )
    max_queued_requests: int = Field(
        64,
        ge=0,
        le=100_000,
        description="Most of them that wait for their turn; beyond it, 503 at once.",
    )
    rate_limit_per_minute: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Calls a minute that one subject may make, of all processes; 0: no limit.",
    )
    rate_limit_per_minute_per_tenant: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Calls a minute of all subjects of a tenant together; 0: no limit.",
    )
    request_timeout_s: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description=(
            "Seconds that a request may take before 504, its time in the queue included. The "
            "header `Request-Timeout-Ms` can shorten it."
        ),
    )
    max_chunk_tokens: int = Field(
        400, ge=16, le=8000, description="Tokens (o200k_base) that a chunk may have."
    )
    strategies_dir: Path | None = Field(
        None, description="Folder with further strategies, one YAML file each."
    )
    embeddings: tuple[EmbeddingSettings, ...] = Field(
        (),
        description=(
            "Embedding profiles, a JSON array of objects with `url` (of an OpenAI-compatible "
            "API, to which `/embeddings` is added), `model`, `dimensions`, and optionally `key`, "
            "`query_prefix`, `passage_prefix`, `normalise` (true), `input_type` (whether a "
            "request says `query` or `passage` in it; false), `batch` (texts in a request; 32), "
            "`deadline_ms` (of a request with its retries; 60,000) and `trust_env` (whether a "
            "proxy named in the environment is used; false). The first one gets vectors for "
            "every chunk; a second one serves until they are complete. Absent: ranking by words "
            "alone."
        ),
    )
    embedding_interval_s: float = Field(
        5.0, gt=0, description="Seconds between two rounds of embedding what has no vectors yet."
    )
    reranking: RerankingSettings | None = Field(
        None,
        description=(
            "Endpoint for the step `rerank` of strategies, a JSON object with `url` (to which "
            "`/rerank` is added), `model`, and optionally `shape` (`cohere`, which is Jina's too, "
            "or `tei`; `cohere`), `key`, `batch` (texts in a request; 32), `deadline_ms` (of a "
            "request with its retries; 60,000) and `trust_env` (false). Absent: no re-ranking."
        ),
    )
    retrievers: tuple[RetrieverSettings, ...] = Field(
        (),
        description=(
            "Retrievers for strategies to name, a JSON array of objects with `name`, `type` "
            "(`http`, `mcp`, `chroma`, `milvus`, or one that a package offers), what it needs of "
            "`url`, `key` and `options`, and optionally `max_trust_tier` (`untrusted-external`), "
            "`retries` (2), `concurrency` (calls at once; 16), `breaker_failures` (in a row; 5) "
            "after which it is left alone for `breaker_reset_s` (30), `max_bytes` (of an answer; "
            "8,388,608) and `trust_env` (false). Absent: the built-in index alone."
        ),
    )
    issuers: tuple[IssuerSettings, ...] = Field(
        (),
        description=(
            "Issuers of tokens, a JSON array of objects with `issuer`, `audiences`, one of "
            "`jwks_file`, `jwks_url` and `hs256_secret`, and optionally `algorithms`. "
            "Absent: only the local development key."
        ),
    )
    claim_names: dict[str, str] = Field(
        default_factory=dict,
        description=('Other names of claims, a JSON object such as `{"tenant_id": "org"}`.'),
    )
    clock_skew_s: int = Field(
        30, ge=0, le=300, description="Seconds by which clocks of issuers may differ."
    )
    audit_seal_interval_s: float = Field(
        10.0, gt=0, description="Seconds between two rounds of sealing the audit log."
    )
    index_retention_days: int | None = Field(
        None,
        ge=1,
        description="Days for which past versions of the index are kept. Absent: for ever.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level of log lines."
    )

    @model_validator(mode="after")
    def _known_claims(self) -> Self:
        known = {
            "sub", "tenant_id", "projects", "groups", "max_classification",
            "max_trust_tier", "classes", "act", "scope",
        }  # fmt: skip
        unknown = sorted(set(self.claim_names) - known)
        if unknown:
            raise ValueError(
                f"claim_names: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}"
            )
        return self


def read_settings(**overrides: object) -> Settings:
    """Settings from the environment; raises ConfigurationError naming what is wrong."""
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        faults = [
            f"{_place(fault['loc'])}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False)
        ]
        raise ConfigurationError("; ".join(faults)) from error
    except SettingsError as error:
        raise ConfigurationError(f"A CTXSNAP_ setting is not valid JSON: {error}") from error


def _place(location: tuple[int | str, ...]) -> str:
    """`CTXSNAP_ISSUERS[0].audiences`; the prefix alone where no single setting is to blame."""
    name, *inner = location or ("",)
    members = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner)
    return f"CTXSNAP_{str(name).upper()}{''.join(members)}"
