"""A pattern of source ids means in PostgreSQL what it means in the process, and no more."""

import re

from hypothesis import given
from hypothesis import strategies as st

from app.adapters.postgres.database import Database, Statement
from app.adapters.postgres.scope_filter import scope_arguments, source_filter
from app.scope.access import RequestedScope, SourcePatterns, narrow
from app.scope.claims import ClaimNames, grant_from_claims
from tests.property.sizes import sized

# What LIKE, regular expressions and JSON paths take for more than itself, and look-alikes.
CHARACTERS = "aA%_\\*?.[]^$|(){}'\"/\n ée\u0301аａ\u200b"
ids = st.lists(st.text(CHARACTERS, min_size=1, max_size=5), min_size=1, max_size=20)
patterns = st.lists(st.text(CHARACTERS, min_size=1, max_size=5), max_size=3).map(tuple)


def _matches(source_id: str, pattern: str) -> bool:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(expression, source_id, re.DOTALL) is not None


def _admits(source_id: str, allow: tuple[str, ...] | None, deny: tuple[str, ...]) -> bool:
    if any(_matches(source_id, pattern) for pattern in deny):
        return False
    return allow is None or any(_matches(source_id, pattern) for pattern in allow)


@sized(40, full=3_000)
@given(ids=ids, allow=st.none() | patterns, deny=patterns)
async def test_only_the_star_is_more_than_itself_in_the_database_as_in_the_process(
    database: Database, ids: list[str], allow: tuple[str, ...] | None, deny: tuple[str, ...]
) -> None:
    asked = SourcePatterns(allow, deny)
    grant = grant_from_claims({"sub": "ana", "tenant_id": "patterns"}, ClaimNames())
    predicate = narrow(grant, RequestedScope(sources=asked)).predicate
    statement = Statement(
        f"SELECT {source_filter(predicate.sources)}"
        " FROM jsonb_array_elements_text($2->'ids') WITH ORDINALITY AS s (source_id, at)"
        " ORDER BY s.at",
        "admitted boolean",
    )
    arguments = {**scope_arguments(predicate), "ids": ids}
    found = [row.admitted for row in await database.run("patterns", statement, arguments)]
    expected = [_admits(one, allow, deny) for one in ids]
    assert found == expected
    assert [predicate.sources.admit(one) for one in ids] == expected
