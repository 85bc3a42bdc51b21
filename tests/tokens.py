"""Tokens for tests, signed with a development key."""

import time
from dataclasses import dataclass
from typing import Any

from app.adapters.development_key import DevelopmentKey
from app.scope.vocabulary import EVERY_PERMISSION


@dataclass(frozen=True, slots=True)
class TokenFactory:
    """Makes request headers; what is not named is generous, so that tests name what they test."""

    key: DevelopmentKey

    def headers(self, tenant: str, **claims: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.sign(tenant, **claims)}"}

    def sign(self, tenant: str, **claims: Any) -> str:
        now = int(time.time())
        usual: dict[str, Any] = {
            "iat": now,
            "exp": now + 3600,
            "sub": "ana",
            "tenant_id": tenant,
            "projects": ["*"],
            "groups": [],
            "max_classification": "restricted",
            "max_trust_tier": "system-policy",
            "scope": " ".join(sorted(EVERY_PERMISSION)),
        }
        merged = {**usual, **claims}
        return self.key.sign({name: value for name, value in merged.items() if value is not None})
