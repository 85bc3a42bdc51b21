"""Tokens counted by tiktoken itself, without any of the service's code."""

import os
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import tiktoken

RANK_FILES = Path(__file__).parents[2] / "app" / "adapters" / "encodings"

MESSAGE_TOKENS = 3
"""What a chat message costs beside its role and its content."""


@cache
def _encoding(name: str) -> tiktoken.Encoding:
    with mock.patch.dict(os.environ, {"TIKTOKEN_CACHE_DIR": str(RANK_FILES)}):
        return tiktoken.get_encoding(name)


def count(text: str, encoding: str) -> int:
    return len(_encoding(encoding).encode_ordinary(text))


def count_messages(messages: list[dict[str, Any]], encoding: str) -> int:
    return sum(
        MESSAGE_TOKENS + count(one["role"], encoding) + count(one["content"], encoding)
        for one in messages
    )
