"""Where sentences end, by their marks, after UAX #29. Pure.

Guarantees: a sentence never ends inside of brackets or quotes that are closed again; nor after an
abbreviation, an initial or a mark that a small letter or a digit follows; time grows linearly with
the text. Thai and Lao, which have no marks, end with the line.

Not handled: sentences without marks in other scripts; sentences that are not told from
abbreviations: they stay together.
"""

import re
from collections.abc import Iterator

import regex

_CLOSERS = r"[\"'”’»)\]」』）】》*_]*+"
_NEXT = r"[\"'“‘«„¿¡(\[*_`]*+[\p{Lu}\p{Lt}\p{Lo}]"
_SENTENCE_END = regex.compile(
    rf"(?<![.!?…])(?:(?P<stop>\.)(?![.!?…])|[.!?…]++){_CLOSERS}(?P<gap>\s++)(?={_NEXT})"
    rf"|(?<![。！？｡])[。！？｡]++"
    rf"(?:{_CLOSERS}(?P<gap>\s++)(?!\p{{M}})|(?![\p{{M}}\u200d\p{{Pe}}\p{{Pf}}\p{{Po}}]))"
    rf"|[।॥۔؟።፧។៕။]{_CLOSERS}(?P<gap>\s++)(?![\p{{M}}\u200d])"
    r"|(?<=[\p{Thai}\p{Lao}]\p{M}{0,3}[ \r]{0,2})(?P<gap>\n\s*+)(?![\p{M}\u200d])"
)
_WORD_BEFORE = regex.compile(r"(?r)[\p{L}\p{M}\p{N}.]++")
_LONGEST_ABBREVIATION = 24
_WITHOUT_MARKS = regex.compile(r"[\p{Thai}\p{Lao}]")
_ABBREVIATIONS = frozenset(
    """
    abb abs al approx apr art aug av bd bspw bzw ca cap cf ch chap co col corp dec dept dr ed eds
    eq eqs esp est etc evtl ex feb fig figs fr gen ggf gov hr hon inc incl inkl jan jr jul jun lt
    ltd mar max min misc mlle mme mr mrs ms mt no nos nov nr núm oct p pp pág prof ref refs rep
    resp rev sec sect sen sep sept sgt sr sra srta st str tab ud uds univ usw var vgl viz vol vols
    vs zzgl др им рис см стр ул
    """.split()  # noqa: SIM905 - a list of words reads better without quotes
)
_PAIRED = re.compile(r"[()\[\]{}（）「」『』【】《》“”«»\"]")
_CLOSED_BY = dict(zip('([{（「『【《“«"', ')]}）」』】》”»"', strict=True))
_MOST_NESTED = 16


def sentence_gaps(paragraph: str) -> Iterator[tuple[int, int]]:
    """The end of each sentence but the last, and the start of the one after it."""
    pairs = _outermost_pairs(paragraph)
    at = 0
    for found in _SENTENCE_END.finditer(paragraph):
        after = found.end()
        while at < len(pairs) and pairs[at][1] < after:
            at += 1
        is_inside = at < len(pairs) and pairs[at][0] < found.start()
        shortens = found.group("stop") and _is_abbreviated(paragraph, found.start())
        if not (is_inside or shortens or after == len(paragraph)):
            yield after - len(found.group("gap") or ""), after


def _outermost_pairs(paragraph: str) -> list[tuple[int, int]]:
    """Brackets and quotes as places of both, in order; those without a partner do not count."""
    waiting: list[tuple[str, int]] = []
    pairs: list[tuple[int, int]] = []
    for found in _PAIRED.finditer(paragraph):
        mark, place = found.group(), found.start()
        partners = (at for at in reversed(range(len(waiting))) if waiting[at][0] == mark)
        partner = next(partners, None)
        if partner is not None:
            start = waiting[partner][1]
            del waiting[partner:]
            while pairs and pairs[-1][0] > start:
                pairs.pop()
            pairs.append((start, place))
        elif mark in _CLOSED_BY:
            waiting = [*waiting[1 - _MOST_NESTED :], (_CLOSED_BY[mark], place)]
    return pairs


def _is_abbreviated(paragraph: str, stop: int) -> bool:
    """Whether the word before this full stop is cut short: `Dr`, `e.g`, an initial."""
    found = _WORD_BEFORE.search(paragraph, max(0, stop - _LONGEST_ABBREVIATION), stop)
    if found is None or found.end() != stop:
        return False
    word = found.group().casefold()
    last = word.rpartition(".")[2]
    is_initial = len(last) == 1 and last.isalpha()
    return word in _ABBREVIATIONS or is_initial or bool(_WITHOUT_MARKS.match(word[-1]))
