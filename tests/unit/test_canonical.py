from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from app.canonical import canonical_bytes

_INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_ASCII = st.text(st.characters(max_codepoint=127))


def _documents(names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | _INTEGERS | _TEXTS
    return st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=20
    )


@given(document=_documents(_ASCII) | _documents(_TEXTS))
def test_canonical_bytes_agree_with_the_reference_library(document: Any) -> None:
    assert canonical_bytes(document) == rfc8785.dumps(document)


def test_names_are_ordered_by_utf_16_code_units() -> None:
    assert canonical_bytes({"\ue000": 1, "\U0001f600": 2}) == '{"😀":2,"\ue000":1}'.encode()


@pytest.mark.parametrize("value", [1.0, [1.5], {"a": {"b": float("nan")}}])
def test_floats_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="floating-point"):
        canonical_bytes(value)


@pytest.mark.parametrize("value", [2**53, -(2**53), ["\ud83d"], {"é": 2**53}, {"é": "\ud83d"}])
def test_what_i_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        canonical_bytes(value)
