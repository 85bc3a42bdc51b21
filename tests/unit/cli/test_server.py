"""The socket that `ctxsnap serve` listens on."""

import socket

import pytest
from fastapi import FastAPI

from app.cli.server import Server, listen
from app.errors import ConfigurationError


def test_an_answers_body_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()) as _:
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_told_with_what_to_do() -> None:
    with (
        listen("127.0.0.1", 0) as bound,
        pytest.raises(ConfigurationError, match="choose another with --host and --port"),
    ):
        listen("127.0.0.1", bound.getsockname()[1])


def test_the_server_keeps_an_idle_connection_longer_than_balancers_and_clients_do() -> None:
    with listen("127.0.0.1", 0) as bound:
        assert Server(FastAPI(), bound).config.timeout_keep_alive > 60
