"""Labels: the access facts of a source, and how identifiers and patterns match.

A label is what a scope admits or not; nothing else about a source decides access.
"""

from dataclasses import dataclass

from app.canonical import JsonValue
from app.scope.vocabulary import Classification, KnowledgeClass, TrustTier


@dataclass(frozen=True, slots=True)
class Label:
    """The access tuple of a source.

    `allow` is None when the source has no allow list (everyone who may read the project);
    an empty tuple allows nobody. Both lists are sorted and free of duplicates.
    """

    project: str
    knowledge_class: KnowledgeClass
    classification: Classification
    trust_tier: TrustTier
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    def canonical(self) -> dict[str, JsonValue]:
        """JSON members, equal for equal labels."""
        return {
            "project": self.project,
            "class": self.knowledge_class.value,
            "classification": self.classification.value,
            "trustTier": self.trust_tier.value,
            "allow": None if self.allow is None else list(self.allow),
            "deny": list(self.deny),
        }


def matches_pattern(text: str, pattern: str) -> bool:
    """Whether `*` (any run of characters, also none) makes `pattern` equal to the whole text.

    Every other character stands for itself. Linear in the text for each part between
    stars: the leftmost fit of each part in turn is enough, so nothing backtracks.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True
