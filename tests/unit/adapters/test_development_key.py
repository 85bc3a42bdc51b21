"""The development key: made once, for its owner alone, and of no use beside real keys."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.adapters.development_key import (
    DEVELOPMENT_AUDIENCE,
    DEVELOPMENT_ISSUER,
    KEY_FILE_NAME,
    DevelopmentKey,
    load_or_create_development_key,
    select_issuers,
)
from app.adapters.jose import IssuerConfig, TokenVerifier
from app.errors import AuthenticationError, ConfigurationError
from tests.unit.adapters.signed_tokens import NOW_S, SECRET, Clock

REAL = IssuerConfig("https://login.example.com", ("ctxsnap",), hs256_secret=SECRET)


def test_the_key_is_made_at_the_first_start_and_read_at_the_next(tmp_path: Path) -> None:
    data_dir = tmp_path / "not" / "yet"
    first = load_or_create_development_key(data_dir)
    assert len(first.secret) == 32
    assert load_or_create_development_key(data_dir) == first
    assert load_or_create_development_key(tmp_path / "other") != first


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_can_read_the_key(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        load_or_create_development_key(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / KEY_FILE_NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE_NAME]


def test_processes_that_start_at_once_use_the_same_key(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from app.adapters.development_key import load_or_create_development_key as load\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(load(Path(sys.argv[1])).secret.hex())\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    secrets = {process.communicate(timeout=30)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 3
    assert secrets == {f"{load_or_create_development_key(tmp_path).secret.hex()}\n"}


def test_the_loser_of_a_race_takes_the_key_of_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner = load_or_create_development_key(tmp_path)
    # As if the file had come into being after this process looked for it.
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    assert load_or_create_development_key(tmp_path) == winner
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE_NAME]


def open_to_others(path: Path) -> None:
    path.chmod(0o640)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def not_base64(path: Path) -> None:
    path.write_bytes(b"?" * 44)


def overlong(path: Path) -> None:
    path.write_bytes(b"A" * 5000)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    "damage",
    [open_to_others, truncated, emptied, not_base64, overlong, linked, dangling, a_folder, a_pipe],
)
def test_a_key_file_that_is_not_what_it_should_be_is_refused_and_left_alone(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    load_or_create_development_key(tmp_path)
    path = tmp_path / KEY_FILE_NAME
    damage(path)
    before = path.lstat()
    with pytest.raises(ConfigurationError, match=KEY_FILE_NAME):
        load_or_create_development_key(tmp_path)
    assert path.lstat().st_mtime_ns == before.st_mtime_ns
    assert path.lstat().st_mode == before.st_mode


def test_a_data_folder_that_cannot_be_made_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError):
        load_or_create_development_key(tmp_path / "file" / "folder")


async def test_a_token_of_the_key_is_verified_and_its_issuer_cannot_be_changed() -> None:
    key = DevelopmentKey(SECRET)
    verifier = TokenVerifier(select_issuers((), key), clock=Clock(), monotonic=Clock())
    token = key.sign({"sub": "ana", "exp": NOW_S + 60, "iss": "other", "aud": "other"})
    assert await verifier.verify(token) == {
        "sub": "ana",
        "exp": NOW_S + 60,
        "iss": DEVELOPMENT_ISSUER,
        "aud": DEVELOPMENT_AUDIENCE,
    }


async def test_a_development_token_is_refused_as_soon_as_real_keys_are_configured() -> None:
    key = DevelopmentKey(SECRET)
    assert select_issuers((REAL,), key) == (REAL,)
    verifier = TokenVerifier(select_issuers((REAL,), key), clock=Clock(), monotonic=Clock())
    with pytest.raises(AuthenticationError, match="issuer"):
        await verifier.verify(key.sign({"sub": "ana", "exp": NOW_S + 60}))


def test_without_any_key_nothing_starts() -> None:
    with pytest.raises(ConfigurationError):
        select_issuers((), None)


def test_a_configured_issuer_does_not_take_the_development_issuers_name() -> None:
    impostor = IssuerConfig(DEVELOPMENT_ISSUER, ("ctxsnap",), hs256_secret=SECRET)
    for development in (None, DevelopmentKey(SECRET[::-1])):
        with pytest.raises(ConfigurationError, match="reserved"):
            select_issuers((REAL, impostor), development)


def test_the_secret_is_not_in_the_repr_of_the_key() -> None:
    assert "0123456789" not in repr(DevelopmentKey(SECRET))
