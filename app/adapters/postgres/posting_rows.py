"""Rows for the table of postings, as arrays: a load may have millions of them.

Arrays are sorted without the interpreter's lock, so that a thread can do it while the event
loop goes on. Columns are label, term, chunk and weight.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app.indexing.source import PreparedChunk

Postings = npt.NDArray[np.int64]


def posting_rows(chunk: PreparedChunk, label_key: int, chunk_key: int) -> Postings:
    """One row for each term; its weight is the frequency above 32 bits of the chunk's length."""
    terms = np.array(chunk.terms, np.int64).reshape(-1, 2)
    rows = np.empty((len(terms), 4), np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = label_key, terms[:, 0], chunk_key
    rows[:, 3] = terms[:, 1] << 32 | chunk.length
    return rows


def in_index_order(parts: Sequence[Postings]) -> Postings:
    """All rows by term, label and chunk: neighbouring entries go to the same pages."""
    rows = np.concatenate([np.empty((0, 4), np.int64), *parts])
    ordered: Postings = rows[np.lexsort((rows[:, 2], rows[:, 0], rows[:, 1]))]
    return ordered
