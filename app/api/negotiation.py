"""Which of two media types a caller would rather have (RFC 9110, section 12.5.1).

JSON wins where both are as welcome, and where neither is: a caller that can do with nothing
else is better served by the answer than by 406, which the RFC leaves open.
"""

import re
from collections.abc import Iterator, Sequence

JSON, TEXT = "application/json", "text/plain"
_QUALITY = re.compile(r"(0(\.[0-9]{0,3})?|1(\.0{0,3})?)")


def prefers_text(accept: Sequence[str]) -> bool:
    """Whether `text/plain` is wanted more than JSON; `accept` are the values of the field."""
    ranges = [one for value in accept for one in _ranges(value)]
    return _quality(TEXT, ranges) > _quality(JSON, ranges)


def _ranges(value: str) -> Iterator[tuple[str, float]]:
    for part in value.split(","):
        name, *parameters = (one.strip().lower() for one in part.split(";"))
        weights = [one[2:].strip() for one in parameters if one.startswith("q=")]
        # Who sends no proper weight has asked for nothing.
        if name and all(map(_QUALITY.fullmatch, weights)):
            yield name, float(weights[0]) if weights else 1.0


def _quality(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    """The weight of the most specific range that matches; 0 where none does."""
    for name in (media_type, media_type.split("/", maxsplit=1)[0] + "/*", "*/*"):
        found = [weight for known, weight in ranges if known == name]
        if found:
            return max(found)
    return 0.0
