"""Vectors made from the words of a text, for measuring speed where no model is fast enough.

A text's vector is the sum of a random direction for each of its terms: texts that share words are
near each other. They say nothing about the quality of vectors that a model makes.
"""

import json
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import numpy.typing as npt

from app.indexing.analysis import analyze
from app.indexing.embedding import EmbeddingProfile, HalfVector, half_vector

DIMENSIONS = 384
_DIRECTIONS = 1 << 16


class WordVectors:
    """Implements `indexing.embedding.Embedder`."""

    profile = EmbeddingProfile("words", DIMENSIONS)

    def __init__(self) -> None:
        drawn = np.random.default_rng(384)
        self._directions = drawn.standard_normal((_DIRECTIONS, DIMENSIONS), np.float32)

    def numbers(self, text: str) -> npt.NDArray[np.float32]:
        """Not normalised; terms beyond the number of directions share them."""
        places = [zlib.crc32(term.encode()) % _DIRECTIONS for term in analyze(text, "en")]
        total: npt.NDArray[np.float32] = self._directions[places or [0]].sum(axis=0)
        return total

    async def embed_passages(self, texts: Sequence[str]) -> tuple[HalfVector, ...]:
        return tuple(self._vector(text) for text in texts)

    async def embed_query(self, text: str) -> HalfVector:
        return self._vector(text)

    def _vector(self, text: str) -> HalfVector:
        return half_vector(self.numbers(text).astype(np.float64), normalise=True)


@contextmanager
def serve_words(words: WordVectors) -> Iterator[str]:
    """The base URL of an OpenAI-compatible server that gives these vectors."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(words))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()


def _handler(words: WordVectors) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = [words.numbers(text).tolist() for text in request["input"]]
            entries = [{"index": at, "embedding": one} for at, one in enumerate(found)]
            body = json.dumps({"data": entries}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A line for each query."""

    return Handler
