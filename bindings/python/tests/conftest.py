"""The stores of the tests: memory, a directory, a Redis server and PostgreSQL, all started here.

A test that needs a server program which this machine lacks fails; none is left out.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import leasehold

HERE = Path(__file__).parent
_KEYS = itertools.count()

# A test fails if what it waits for has not happened after this time. None takes nearly as long.
PATIENCE = 60.0


def until(what: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Waits for a condition, and returns its first true value."""
    end = time.monotonic() + patience
    while True:
        if value := what():
            return value
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def redis_program() -> str:
    """As the Rust tests find it."""
    if named := os.environ.get("LEASEHOLD_REDIS_SERVER"):
        return named
    made = Path(os.environ.get("LEASEHOLD_TARGET", HERE / "../../../target")) / "servers/redis-server"
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return found or str(made)


def postgres_folder() -> str:
    """As the Rust tests find it: the folder with `initdb` and `postgres`."""
    if named := os.environ.get("LEASEHOLD_POSTGRESQL_BIN"):
        return named
    places = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), reverse=True)
    program = places[0] if places else shutil.which("postgres")
    assert program, "no PostgreSQL: name the folder of postgres in LEASEHOLD_POSTGRESQL_BIN"
    return str(Path(os.path.realpath(program)).parent)


@contextlib.contextmanager
def served(
    command: list[str], answers: Callable[[], bool], **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **more
        )
        try:
            until(lambda: server.poll() is not None or answers())
            log.seek(0)
            assert server.poll() is None, f"{command[0]} ended: {log.read()[-2000:]}"
            yield server
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """A Redis server of a test, which may be killed before the test's end."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port, self.process = port, process
        self.url = f"redis://127.0.0.1:{port}"
        self.asked = redis.Redis(port=port)

    def kill(self) -> None:
        self.asked.close()
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def redis_server(place: Path, *settings: str) -> Iterator[Server]:
    """One in a folder, or with a file of settings."""
    # The nodes of a cluster talk at the port that is 10 000 higher.
    port = until(lambda: (port := free_port()) < 55_536 and port)
    command = [redis_program()]
    if place.suffix == ".conf":
        command.append(str(place))
    else:
        place.mkdir(exist_ok=True)
        command += ["--save", "", "--dir", str(place)]
    command += ["--port", str(port), "--bind", "127.0.0.1", *settings]
    with served(command, lambda: listens(port)) as process:
        yield Server(port, process)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="leasehold-postgres-"))
    programs = Path(postgres_folder())
    more: dict[str, Any] = {"cwd": folder}
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        more |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    data = folder / "data"
    make = [programs / "initdb", "--auth=trust", "--username=app", "--encoding=UTF8", "--locale=C"]
    subprocess.run([*make, "--no-sync", "-D", data], check=True, capture_output=True, **more)
    settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}"]
    settings += ["fsync=off", "max_connections=60"]
    command = [str(programs / "postgres"), "-D", str(data)]
    for setting in settings:
        command += ["-c", setting]
    ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    try:
        with served(command, lambda: subprocess.run(ready).returncode == 0, **more):
            yield f"postgres://app@127.0.0.1:{port}/postgres?create=yes"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["memory", "embedded", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind."""
    match request.param:
        case "memory":
            return "memory:"
        case "embedded":
            return f"embedded:{tmp_path / 'locks'}"
        case name:
            return str(request.getfixturevalue(f"{name}_url"))


@pytest.fixture(params=["embedded", "redis"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes can share."""
    if request.param == "embedded":
        return f"embedded:{tmp_path / 'locks'}"
    return str(request.getfixturevalue("redis_url"))


@pytest.fixture
def client(url: str) -> Iterator[leasehold.Client]:
    with leasehold.Client(url) as client:
        yield client


@pytest.fixture
def shared(shared_url: str) -> Iterator[leasehold.Client]:
    with leasehold.Client(shared_url) as client:
        yield client


@pytest.fixture
def memory() -> Iterator[leasehold.Client]:
    with leasehold.Client("memory:") as client:
        yield client


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"test-{os.getpid()}-{next(_KEYS)}"


class Child:
    """A Python program of its own, whose lines the test reads."""

    def __init__(self, source: str, *args: str, **more: Any) -> None:
        program = [sys.executable, "-c", source, *args]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            program, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **more
        )

    def line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        if not line:
            _, errors = self.process.communicate(timeout=PATIENCE)
            raise AssertionError(f"the program ended: {errors[-2000:]}")
        return line

    def tell(self, line: str = "") -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        out, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, errors


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def start(source: str, *args: str, **more: Any) -> Child:
        started.append(Child(source, *args, **more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
