"""What a file is, by its name alone."""

import re

import pytest

from app.api.source_schemas import SourceBody
from app.cli import media_types
from app.cli.media_types import kind_of
from app.indexing.outline import Format, format_of
from app.scope.vocabulary import KnowledgeClass


@pytest.mark.parametrize(
    ("name", "media_type", "knowledge_class"),
    [
        ("docs/README.MD", "text/markdown", KnowledgeClass.DOCUMENTS),
        ("peps/pep-0008.rst", "text/x-rst", KnowledgeClass.DOCUMENTS),
        ("app/main.py", "text/x-python", KnowledgeClass.CODE),
        ("Makefile", "text/x-makefile", KnowledgeClass.CODE),
        ("a/LICENSE", "text/plain", KnowledgeClass.DOCUMENTS),
        (".gitignore", "text/plain", KnowledgeClass.DOCUMENTS),
    ],
)
def test_the_ending_of_a_name_tells_media_type_and_class(
    name: str, media_type: str, knowledge_class: KnowledgeClass
) -> None:
    assert kind_of(name) == (media_type, knowledge_class)


def test_every_media_type_is_one_that_the_service_takes() -> None:
    found = {*media_types._CODE.values(), *media_types._PROSE.values()}
    for media_type in found:
        SourceBody.model_validate(
            {
                "sourceId": "a", "sourceRevision": "1", "class": "code", "text": "",
                "mediaType": media_type,
            }
        )  # fmt: skip
        assert re.fullmatch(r"[a-z]+/[a-z0-9.+-]+", media_type)


def test_every_kind_of_code_is_cut_as_code() -> None:
    assert {format_of(media_type) for media_type in media_types._CODE.values()} == {Format.CODE}
