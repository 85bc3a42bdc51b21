"""A gRPC server that gives the answers of the test's own instead of Milvus'.

Imported where it is used: the client library takes seconds to load.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from pymilvus.grpc_gen import common_pb2, milvus_pb2, schema_pb2

Answer = Callable[[str, Any], bytes]


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers each method with bytes of the test's own."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def service(self, details: Any) -> Any:
        method = details.method.rsplit("/", 1)[1]
        return grpc.unary_unary_rpc_method_handler(lambda _, context: self._answer(method, context))


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Handler(answer)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def _collection() -> bytes:
    fields = [
        schema_pb2.FieldSchema(name="chunk_key", data_type=5, is_primary_key=True),
        schema_pb2.FieldSchema(name="label_key", data_type=5),
        schema_pb2.FieldSchema(name="vector", data_type=101),
    ]
    described = milvus_pb2.DescribeCollectionResponse(
        schema=schema_pb2.CollectionSchema(name="c", fields=fields)
    )
    return bytes(described.SerializeToString())


def _found(**ids: Any) -> bytes:
    """One place for each of these ids, of one query."""
    data = schema_pb2.SearchResultData(
        num_queries=1,
        top_k=1,
        topks=[1],
        scores=[1.0],
        ids=schema_pb2.IDs(**ids),
        primary_field_name="chunk_key",
    )
    return bytes(milvus_pb2.SearchResults(results=data).SerializeToString())


def searched(answer: bytes | Any) -> Answer:
    """A server that knows the collection; a status instead of bytes refuses the search."""

    def told(method: str, context: Any) -> bytes:
        if method == "DescribeCollection":
            return _collection()
        if method != "Search":
            return b""
        if not isinstance(answer, bytes):
            context.abort(answer, "secret-detail")
        return bytes(answer)

    return told


def _status(code: int) -> bytes:
    status = common_pb2.Status(code=code, error_code=1, reason="secret-detail")
    return bytes(milvus_pb2.SearchResults(status=status).SerializeToString())


def good() -> bytes:
    return _found(int_id=schema_pb2.LongArray(data=[7]))


def wrong(name: str) -> bytes | Any:
    kind, _, told = name.partition(" ")
    if kind == "gRPC":
        return getattr(grpc.StatusCode, told)
    if kind == "Milvus":
        return _status(int(told))
    return {
        "no message": b"\xff\xff\xff",
        "no query": b"",
        "keys that are texts": _found(str_id=schema_pb2.StringArray(data=["1"])),
        "a key that no chunk has": _found(int_id=schema_pb2.LongArray(data=[-1])),
        "without an end": _found(int_id=schema_pb2.LongArray(data=[7])) + _unknown_field(1 << 20),
    }[name]


def _unknown_field(size: int) -> bytes:
    """A field that no reader knows, of three bytes' length: the message is good but for it."""
    length = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
    return b"\xfa\x7f" + length + bytes(size)
