"""A prompt read back by its fences alone, without any of the service's code.

The reader takes the marker from the first heading, as a model would, and then goes from one
marker to the next. So a text that holds the marker, or that ends its own fence, is read as
something else than it was, or cannot be read at all.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Prompt = str | list[Json]

TIERS = (
    "system-policy",
    "agent",
    "skill",
    "user",
    "trusted-knowledge",
    "tool-result",
    "untrusted-external",
)
SYSTEM_TIERS = TIERS[:3]
DATA_TIERS = TIERS[4:]

_ATTRIBUTE = '[^"<>\n\r]*'
_HEADING = re.compile(
    '<context-(?P<marker>[0-9]{27}) tier="(?P<tier>[a-z-]+)"'
    f'(?: rule="(?P<rule>{_ATTRIBUTE})")?>\n'
)
_HEADER = re.compile(
    "<item-(?P<marker>[0-9]{27})"
    f' source="({_ATTRIBUTE})" project="({_ATTRIBUTE})" revision="({_ATTRIBUTE})"'
    f' chunk="({_ATTRIBUTE})" class="([a-z-]+)" classification="([a-z]+)">\n'
)


class FenceBrokenError(AssertionError):
    """A prompt that is not made of fences one after the other."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """One text with what its fence says of it; `role` is None in a prompt that is one text."""

    role: str | None
    tier: str
    project: str
    source_id: str
    revision: str
    chunk_id: str
    knowledge_class: str
    classification: str
    text: str


def marker_of(prompt: Prompt) -> str:
    first = prompt if isinstance(prompt, str) else prompt[0]["content"]
    heading = _HEADING.match(first)
    if heading is None:
        raise FenceBrokenError("the prompt does not begin with the heading of a tier")
    return heading["marker"]


def read_prompt(prompt: Prompt) -> list[Fenced]:
    """The texts in their order; FenceBrokenError for what no rendering may look like."""
    marker = marker_of(prompt)
    read, tiers = [], []
    contents = [(None, prompt)] if isinstance(prompt, str) else [_message(one) for one in prompt]
    for role, content in contents:
        reader = _Reader(content, marker)
        found = list(reader.tiers(role))
        if role is not None and len(found) != 1:
            raise FenceBrokenError("a message holds more than one tier")
        tiers += [tier for tier, _ in found]
        read += [fenced for _, texts in found for fenced in texts]
    if tiers != [tier for tier in TIERS if tier in tiers]:
        raise FenceBrokenError(f"the tiers stand as {tiers}")
    return read


def left_their_fence(prompt: Prompt, expected: Iterable[Fenced]) -> Counter[Fenced]:
    """Those expected texts that do not stand as they should: all, where nothing can be read."""
    try:
        found = Counter(read_prompt(prompt))
    except FenceBrokenError:
        found = Counter()
    return Counter(expected) - found


def fenced(source: Json, format_: str) -> Iterator[Fenced]:
    """How the chunks of a source, or an inline item, must stand in a prompt of this format."""
    tier = source["trustTier"]
    role = "system" if tier in SYSTEM_TIERS else "user"
    for chunk in source.get("chunks", [source]):
        yield Fenced(
            role=role if format_ == "messages" else None,
            tier=tier,
            project=source["project"],
            source_id=source["sourceId"],
            revision=source["sourceRevision"],
            chunk_id=chunk["chunkId"],
            knowledge_class=source["class"],
            classification=source["classification"],
            text=chunk["text"],
        )


def _message(message: Json) -> tuple[str, str]:
    if set(message) != {"role", "content"}:
        raise FenceBrokenError(f"a message has the members {sorted(message)}")
    return message["role"], message["content"]


@dataclass
class _Reader:
    content: str
    marker: str
    at: int = 0

    def tiers(self, role: str | None) -> Iterator[tuple[str, list[Fenced]]]:
        while self.at < len(self.content):
            heading = self._match(_HEADING)
            if bool(heading["rule"]) != (heading["tier"] in DATA_TIERS):
                raise FenceBrokenError(f"the rule of {heading['tier']} is {heading['rule']}")
            texts = []
            while not self._takes(f"</context-{self.marker}>\n"):
                texts.append(self._text(role, heading["tier"]))
            yield heading["tier"], texts

    def _text(self, role: str | None, tier: str) -> Fenced:
        header = self._match(_HEADER)
        _, source_id, project, revision, chunk_id, class_, classification = header.groups()
        start, ending = self.at, "\n</item-"
        self.at = self.content.find(self.marker, start) - len(ending)
        if self.at < start or not self._takes(f"{ending}{self.marker}>\n"):
            raise FenceBrokenError(f"the marker stands inside the text of {source_id}")
        text = self.content[start : self.at - len(f"{ending}{self.marker}>\n")]
        return Fenced(
            role=role,
            tier=tier,
            project=_plain(project),
            source_id=_plain(source_id),
            revision=_plain(revision),
            chunk_id=_plain(chunk_id),
            knowledge_class=class_,
            classification=classification,
            text=text,
        )

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.content, self.at)
        if found is None or found["marker"] != self.marker:
            raise FenceBrokenError(f"no fence at {self.content[self.at : self.at + 60]!r}")
        self.at = found.end()
        return found

    def _takes(self, literal: str) -> bool:
        taken = self.content.startswith(literal, self.at)
        self.at += len(literal) if taken else 0
        return taken


def _plain(attribute: str) -> str:
    """An attribute's value with its character references resolved, once."""
    return re.sub("&#([0-9]+);", lambda found: chr(int(found[1])), attribute)
