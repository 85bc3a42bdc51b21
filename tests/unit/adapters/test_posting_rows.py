"""Rows of postings: the same as sorted tuples, whatever comes in."""

from hypothesis import given
from hypothesis import strategies as st

from app.adapters.postgres.posting_rows import in_index_order, posting_rows
from app.canonical import digest_text
from app.indexing.source import PreparedChunk

_TERMS = st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**31 - 1), max_size=5)


def chunk(terms: dict[int, int], length: int) -> PreparedChunk:
    return PreparedChunk(
        chunk_id="0",
        text="",
        content_hash=digest_text(""),
        body_tokens={},
        terms=tuple(terms.items()),
        length=length,
    )


@given(
    st.lists(
        st.tuples(
            _TERMS, st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(1, 2**62)
        ),
        max_size=6,
    )
)
def test_all_rows_are_there_in_the_order_of_term_label_and_chunk(
    chunks: list[tuple[dict[int, int], int, int, int]],
) -> None:
    parts = [posting_rows(chunk(terms, length), label, key) for terms, length, label, key in chunks]
    expected = sorted(
        (term, label, key, frequency << 32 | length)
        for terms, length, label, key in chunks
        for term, frequency in terms.items()
    )
    rows = in_index_order(parts)
    assert rows.shape == (len(expected), 4)
    found = [(term, label, key, weight) for label, term, key, weight in rows.tolist()]
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    assert sorted(found) == expected
