"""The token-counting port.

A count is exact: the number of tokens into which the encoding's tokenizer splits the text
as plain text. Text that spells a special token (`<|endoftext|>`) is plain text like any
other. The port knows no chat format: message overhead is the renderer's business.
"""

from typing import Protocol


class TokenCounter(Protocol):
    """Safe to call from several threads at once."""

    @property
    def encodings(self) -> tuple[str, ...]:
        """Names of the supported encodings, sorted."""
        ...

    def count(self, text: str, encoding: str) -> int:
        """Tokens of `text`; blocks for a time that grows with the text, so large ones go off-loop.

        Raises InvalidRequestError for an unknown encoding, naming the known ones, and for text
        that UTF-8 cannot hold (lone surrogates); TooLargeError beyond the counter's limit.
        """
        ...

    def encoding_for_model(self, model: str) -> str:
        """Name of the supported encoding that `model` uses.

        Raises InvalidRequestError at `/budget/model` for any other model, naming the known ones.
        """
        ...
