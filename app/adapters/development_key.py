"""The key of a first run without configuration: an HS256 secret of this machine alone.

Guarantees: the secret is 32 random bytes in a file that only its owner can read; it
appears whole or not at all, and of several processes that start at once all use the
same. A file that others can read, or that is not such a key, is refused, not repaired.
As soon as issuers are configured the development key opens nothing.

Not handled: file systems without hard links and owners.
"""

import base64
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import OctKey

from app.adapters.jose import IssuerConfig
from app.errors import ConfigurationError

DEVELOPMENT_ISSUER = "ctxsnap-development"
DEVELOPMENT_AUDIENCE = "ctxsnap"
KEY_FILE_NAME = "development.key"

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class DevelopmentKey:
    secret: bytes = field(repr=False)

    def sign(self, claims: Mapping[str, object]) -> str:
        """A token with these claims, its issuer and audience set; `exp` is the caller's."""
        payload = {**claims, "iss": DEVELOPMENT_ISSUER, "aud": DEVELOPMENT_AUDIENCE}
        return jwt.encode({"alg": "HS256"}, payload, OctKey.import_key(self.secret))

    @property
    def issuer(self) -> IssuerConfig:
        return IssuerConfig(
            issuer=DEVELOPMENT_ISSUER,
            audiences=(DEVELOPMENT_AUDIENCE,),
            hs256_secret=self.secret,
        )


def select_issuers(
    configured: tuple[IssuerConfig, ...], development: DevelopmentKey | None
) -> tuple[IssuerConfig, ...]:
    """The issuers to trust: those configured, and the development key only without any.

    Raises ConfigurationError when nobody could get in, or when a configured issuer takes
    the development issuer's name.
    """
    if any(config.issuer == DEVELOPMENT_ISSUER for config in configured):
        raise ConfigurationError(f"The issuer name {DEVELOPMENT_ISSUER} is reserved.")
    if configured:
        return configured
    if development is None:
        raise ConfigurationError("No issuer of tokens is configured.")
    return (development.issuer,)


def load_or_create_development_key(data_dir: Path) -> DevelopmentKey:
    """The key in `data_dir`, which is made with the key at the first start.

    Raises ConfigurationError when the file is not a key of this user that others cannot
    read, or cannot be made.
    """
    path = data_dir / KEY_FILE_NAME
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(path):
            _create(path)
        return DevelopmentKey(_read(path))
    except OSError as error:
        raise ConfigurationError(
            f"The development key {path} cannot be read or made: {error.strerror}."
        ) from error


def _create(path: Path) -> None:
    """Write a new key beside the path, then link it there: the first of several wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path, follow_symlinks=False)
        except FileExistsError:
            # Another process was first; its key is the one to read.
            return
    finally:
        draft.unlink()


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ConfigurationError(f"The development key {path} is not a file of this user.")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigurationError(
                f"The development key {path} is open to other users: set its mode to 0600, "
                "or delete it to have a new one made."
            )
        text = file.read(256)
    try:
        secret = base64.b64decode(text.strip(), altchars=b"-_", validate=True)
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise ConfigurationError(
            f"The development key {path} is damaged: delete it to have a new one made."
        )
    return secret
