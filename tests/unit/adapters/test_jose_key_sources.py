"""Keys from a file and from a real HTTP server: rotation, outage, limits."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from joserfc.jwk import ECKey

from app.adapters.jose import IssuerConfig, TokenVerifier
from app.adapters.jose_key_sources import JwksUrlPolicy
from app.errors import AuthenticationError, ConfigurationError, UnavailableError
from tests.unit.adapters.key_server import KeyServer, running_key_server
from tests.unit.adapters.signed_tokens import (
    AUDIENCE,
    EC,
    ISSUER,
    RSA,
    Clock,
    claims,
    jwks,
    rs256,
    signed,
)

POLICY = JwksUrlPolicy(
    fresh_s=300, max_stale_s=3600, min_interval_s=10, timeout_s=5, max_bytes=20_000
)
NEW = ECKey.generate_key("P-256", {"kid": "new"})
OLD_TOKEN = signed(EC, "ES256", claims())
NEW_TOKEN = signed(NEW, "ES256", claims())


async def accepts(verifier: TokenVerifier, token: str) -> bool:
    try:
        await verifier.verify(token)
    except AuthenticationError:
        return False
    return True


async def outage(verifier: TokenVerifier, token: str = OLD_TOKEN) -> UnavailableError:
    with pytest.raises(UnavailableError, match="could not be fetched yet") as caught:
        await asyncio.wait_for(verifier.verify(token), timeout=5)
    return caught.value


class Rig:
    """A verifier of one issuer, whose keys come from the server; time is in the test's hand."""

    def __init__(
        self, server: KeyServer, client: httpx.AsyncClient, policy: JwksUrlPolicy = POLICY
    ) -> None:
        self.server = server
        self.time = Clock(1000)
        self.verifier = TokenVerifier(
            (IssuerConfig(ISSUER, (AUDIENCE,), jwks_url=server.url),),
            clock=Clock(),
            monotonic=self.time,
            client=client,
            jwks_url_policy=policy,
        )

    async def accepts(self, token: str) -> bool:
        return await accepts(self.verifier, token)

    async def settled(self) -> None:
        """Wait until a renewal in the background, if any, has come to its end."""
        for _ in range(500):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not any("JwksUrl._load" in repr(task.get_coro()) for task in others):
                return
            await asyncio.sleep(0.01)
        raise TimeoutError


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with running_key_server() as running:
        running.body = jwks(EC)
        yield running


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as opened:
        yield opened


@pytest.fixture
async def rig(server: KeyServer, client: httpx.AsyncClient) -> AsyncIterator[Rig]:
    built = Rig(server, client)
    yield built
    await built.verifier.aclose()


async def test_the_first_token_fetches_the_keys_and_the_next_ones_use_them(rig: Rig) -> None:
    assert rig.server.asked == 0
    assert await rig.accepts(OLD_TOKEN)
    assert await rig.accepts(OLD_TOKEN)
    assert rig.server.asked == 1


async def test_a_token_with_a_header_that_cannot_pass_asks_no_server(rig: Rig) -> None:
    assert not await rig.accepts(signed(EC, "ES256", claims(), alg="none"))
    assert not await rig.accepts(signed(EC, "ES256", claims(), crit=["x"], x=1))
    assert not await rig.accepts(signed(EC, "ES256", claims(iss="other")))
    assert rig.server.asked == 0


async def test_an_unknown_kid_fetches_the_rotated_keys(rig: Rig) -> None:
    assert await rig.accepts(OLD_TOKEN)
    rig.server.body = jwks(NEW)
    rig.time.now_s += 11
    assert await rig.accepts(NEW_TOKEN)
    assert not await rig.accepts(OLD_TOKEN)
    assert rig.server.asked == 2


async def test_unknown_kids_ask_the_server_at_most_once_in_the_interval(rig: Rig) -> None:
    assert await rig.accepts(OLD_TOKEN)
    rig.time.now_s += 11
    for number in range(20):
        assert not await rig.accepts(signed(NEW, "ES256", claims(), kid=f"made-up-{number}"))
    assert rig.server.asked == 2
    assert await rig.accepts(OLD_TOKEN)


async def test_many_tokens_at_once_make_one_request(rig: Rig) -> None:
    rig.server.open.clear()
    waiting = [asyncio.create_task(rig.accepts(OLD_TOKEN)) for _ in range(50)]
    assert await asyncio.to_thread(rig.server.reached.wait, 5)
    rig.server.open.set()
    assert all(await asyncio.gather(*waiting))
    assert rig.server.asked == 1


async def test_a_caller_who_goes_away_does_not_end_the_request_of_the_others(rig: Rig) -> None:
    rig.server.open.clear()
    first = asyncio.create_task(rig.accepts(OLD_TOKEN))
    assert await asyncio.to_thread(rig.server.reached.wait, 5)
    second = asyncio.create_task(rig.accepts(OLD_TOKEN))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled()
    rig.server.open.set()
    assert await second
    assert rig.server.asked == 1


async def test_stale_keys_are_used_while_they_are_renewed(rig: Rig) -> None:
    assert await rig.accepts(OLD_TOKEN)
    rig.server.body = jwks(NEW)
    rig.server.open.clear()
    rig.time.now_s += 301
    assert await asyncio.wait_for(rig.accepts(OLD_TOKEN), timeout=2)
    rig.server.open.set()
    await rig.settled()
    assert await rig.accepts(NEW_TOKEN)
    assert not await rig.accepts(OLD_TOKEN)
    assert rig.server.asked == 2


async def test_keys_are_kept_through_an_outage_until_they_are_too_old(rig: Rig) -> None:
    assert await rig.accepts(OLD_TOKEN)
    rig.server.status = 503
    for _ in range(10):
        rig.time.now_s += 350
        assert await rig.accepts(OLD_TOKEN)
        await rig.settled()
    rig.time.now_s += 101
    with pytest.raises(AuthenticationError, match="not available"):
        await rig.verifier.verify(OLD_TOKEN)
    rig.server.status = 200
    rig.time.now_s += 11
    assert await rig.accepts(OLD_TOKEN)


async def test_an_unknown_kid_during_an_outage_does_not_lose_the_known_keys(rig: Rig) -> None:
    assert await rig.accepts(OLD_TOKEN)
    rig.server.status = 500
    rig.time.now_s += 11
    assert not await rig.accepts(NEW_TOKEN)
    assert await rig.accepts(OLD_TOKEN)


async def test_a_server_that_is_down_at_the_first_start_makes_no_token_invalid(rig: Rig) -> None:
    rig.server.status = 500
    first = await outage(rig.verifier)
    assert isinstance(first.__cause__, UnavailableError)
    assert first.retry_after_s == 10
    # Nothing of a token can be told without keys, whoever signed it; the rest of it can.
    await outage(rig.verifier, NEW_TOKEN)
    assert not await rig.accepts(signed(EC, "ES256", claims(iss="other")))
    assert not await rig.accepts(signed(EC, "ES256", claims(), alg="none"))
    assert not await rig.accepts("x.y.z")
    rig.server.status = 200
    rig.time.now_s += 8.5
    assert (await outage(rig.verifier)).retry_after_s == 2
    assert rig.server.asked == 1
    rig.time.now_s += 1.5
    assert await rig.accepts(OLD_TOKEN)
    assert not await rig.accepts(NEW_TOKEN)


async def test_a_port_that_nobody_listens_on_is_an_outage(client: httpx.AsyncClient) -> None:
    with running_key_server() as closed:
        pass
    failure = await outage(Rig(closed, client).verifier)
    assert isinstance(failure.__cause__, httpx.ConnectError)


async def test_a_server_that_does_not_answer_is_given_up(
    server: KeyServer, client: httpx.AsyncClient
) -> None:
    server.open.clear()
    failure = await outage(Rig(server, client, JwksUrlPolicy(timeout_s=0.1)).verifier)
    assert isinstance(failure.__cause__, TimeoutError)


async def test_keys_that_a_server_withdraws_are_gone(rig: Rig) -> None:
    assert await rig.accepts(OLD_TOKEN)
    rig.server.body = b'{"keys": []}'
    rig.time.now_s += 301
    await rig.accepts(OLD_TOKEN)
    await rig.settled()
    assert not await rig.accepts(OLD_TOKEN)


@pytest.mark.parametrize("body", [b"", b"<html>maintenance</html>", b'{"error": "later"}', b"[]"])
async def test_an_answer_that_is_no_key_set_is_an_outage(rig: Rig, body: bytes) -> None:
    assert await rig.accepts(OLD_TOKEN)
    rig.server.body = body
    rig.time.now_s += 301
    assert await rig.accepts(OLD_TOKEN)
    await rig.settled()
    assert await rig.accepts(OLD_TOKEN)
    assert rig.server.asked == 2


async def test_redirects_are_not_followed(rig: Rig) -> None:
    rig.server.status = 302
    rig.server.headers = {"Location": rig.server.url.replace("jwks", "elsewhere")}
    await outage(rig.verifier)
    assert rig.server.paths == ["/jwks.json"]


async def test_an_answer_beyond_the_limit_is_not_taken(rig: Rig) -> None:
    rig.server.body = jwks(EC) + b" " * 20_000
    await outage(rig.verifier)


async def test_a_compressed_answer_is_not_unpacked(rig: Rig) -> None:
    rig.server.headers = {"Content-Encoding": "gzip"}
    await outage(rig.verifier)


async def test_closing_ends_a_request_that_is_under_way(
    server: KeyServer, client: httpx.AsyncClient
) -> None:
    server.open.clear()
    rig = Rig(server, client)
    waiting = asyncio.create_task(rig.accepts(OLD_TOKEN))
    assert await asyncio.to_thread(server.reached.wait, 5)
    await asyncio.wait_for(rig.verifier.aclose(), timeout=2)
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(rig.settled(), timeout=2)


def file_verifier(path: Path) -> TokenVerifier:
    return TokenVerifier(
        (IssuerConfig(ISSUER, (AUDIENCE,), jwks_file=path),), clock=Clock(), monotonic=Clock()
    )


async def test_a_key_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(EC))
    verifier = file_verifier(path)
    assert await accepts(verifier, OLD_TOKEN)
    path.write_bytes(jwks(NEW, RSA))
    assert await accepts(verifier, NEW_TOKEN)
    assert await accepts(verifier, rs256())
    assert not await accepts(verifier, OLD_TOKEN)


async def test_a_key_file_of_the_same_size_with_another_time_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(EC))
    verifier = file_verifier(path)
    twin = ECKey.generate_key("P-256", {"kid": "ec"})
    path.write_bytes(jwks(twin))
    os.utime(path, ns=(1, 1))
    assert await accepts(verifier, signed(twin, "ES256", claims()))


async def test_a_key_file_that_is_unreadable_for_a_while_keeps_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(EC))
    verifier = file_verifier(path)
    path.write_bytes(jwks(NEW)[:40])
    assert await accepts(verifier, OLD_TOKEN)
    path.unlink()
    assert await accepts(verifier, OLD_TOKEN)
    path.write_bytes(jwks(NEW))
    assert await accepts(verifier, NEW_TOKEN)
    assert not await accepts(verifier, OLD_TOKEN)


async def test_keys_that_are_taken_out_of_the_file_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(EC))
    verifier = file_verifier(path)
    path.write_bytes(b'{"keys": []}')
    assert not await accepts(verifier, OLD_TOKEN)


@pytest.mark.parametrize("document", [None, b"", b"{}", b'{"keys": []}', b'{"keys": [{}]}'])
def test_a_key_file_without_a_usable_key_is_a_fault_of_the_configuration(
    tmp_path: Path, document: bytes | None
) -> None:
    path = tmp_path / "jwks.json"
    if document is not None:
        path.write_bytes(document)
    with pytest.raises(ConfigurationError):
        file_verifier(path)
