"""A child of a process makes connections of its own, and leaves its parent's holds alone."""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, PATIENCE, until

import leasehold
from leasehold import aio

fork = multiprocessing.get_context("fork")


def in_child(call: Callable[[], object]) -> int:
    """Runs a call in a fork; returns its exit code, 1 if it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(int(PATIENCE))
            call()
            code = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_uses_its_parents_client(shared: leasehold.Client, key: str) -> None:
    mutex = shared.mutex(key)
    guard = mutex.lock()

    def child() -> None:
        assert shared.mutex(key).try_lock() is None and mutex.try_lock() is None
        with shared.mutex(f"{key}/own").lock() as own:
            assert own.is_held

        async def main() -> None:
            async with aio.Client.of(shared).mutex(f"{key}/aio").lock() as it:
                assert it.is_held

        asyncio.run(main())

    assert in_child(child) == 0
    assert guard.is_held and guard.is_held_by_store()
    guard.release()


def test_the_lock_of_a_child_excludes_its_parent(shared: leasehold.Client, key: str) -> None:
    ours, theirs = fork.Pipe()

    def child() -> None:
        with shared.mutex(key).lock():
            theirs.send("held")
            theirs.recv()

    process = fork.Process(target=child)
    process.start()
    assert ours.recv() == "held"
    assert shared.mutex(key).try_lock() is None
    ours.send("go on")
    shared.mutex(key).lock(timeout=PATIENCE).release()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("use", ["fence", "check", "release", "lost", "with", "renew_to", "detach"])
def test_a_guard_is_its_parents(shared: leasehold.Client, key: str, use: str) -> None:
    guard = shared.mutex(key).lock()

    def child() -> None:
        with pytest.raises(leasehold.Misuse):
            match use:
                case "fence":
                    print(guard.fence)
                case "lost":
                    guard.lost(timeout=0)
                case "renew_to":
                    guard.renew_to(30)
                case "with":
                    with guard:
                        pass
                case _:
                    getattr(guard, use)()

    assert in_child(child) == 0
    assert guard.is_held_by_store()
    guard.release()


def test_memory_stays_its_parents(memory: leasehold.Client, key: str) -> None:
    def child() -> None:
        with pytest.raises(leasehold.Misuse):
            memory.mutex(key).lock(timeout=0)

    assert in_child(child) == 0


# From 3.12 on the interpreter warns of each fork of a process that has threads.
ENDS = """
import os, sys, warnings, leasehold
warnings.simplefilter("ignore", DeprecationWarning)
url, key = sys.argv[1:]
client = leasehold.Client(url)
guard = client.mutex(key).lock()
if os.fork() == 0:
    {end}
    sys.exit()
os.wait()
print(guard.is_held_by_store(), flush=True)
sys.stdin.readline()
guard.release()
"""


@pytest.mark.parametrize("end", ["pass", "del guard", "client.close()", "guard = client = None"])
def test_a_child_that_ends_takes_nothing_along(
    shared: leasehold.Client, shared_url: str, key: str, child: Callable[..., Any], end: str
) -> None:
    """It runs its exit handlers, and drops what it has of its parent."""
    program = child(ENDS.format(end=end), shared_url, key)
    assert program.line() == "True"
    assert shared.mutex(key).try_lock() is None
    program.tell()
    assert program.end() == (0, "", "")


def test_forks_while_threads_are_in_calls(shared: leasehold.Client, key: str) -> None:
    stop = threading.Event()

    def spin(n: int) -> None:
        while not stop.is_set():
            with shared.mutex(f"{key}/{n % 2}").lock():
                pass

    threads = [threading.Thread(target=spin, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()

    def child() -> None:
        with shared.mutex(f"{key}/child").lock(timeout=PATIENCE):
            pass

    codes = [in_child(child) for _ in range(30)]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 30


def test_a_fork_within_a_loop(shared_url: str, key: str) -> None:
    async def main() -> None:
        async with aio.Client(shared_url) as client:
            guard = await client.mutex(key).lock()

            def child() -> None:
                async def inner() -> None:
                    assert await client.mutex(key).try_lock() is None
                    async with client.mutex(f"{key}/child").lock():
                        pass

                thread = threading.Thread(target=asyncio.run, args=(inner(),))
                thread.start()
                thread.join()

            assert in_child(child) == 0
            assert await guard.is_held_by_store()
            await guard.release()

    asyncio.run(main())


def work(url: str, key: str, path: str) -> None:
    """Adds one to the number in a file, under the lock."""
    with leasehold.Client(url) as client, client.mutex(key).lock(timeout=PATIENCE):
        number = int(Path(path).read_text())
        time.sleep(0.002)
        Path(path).write_text(str(number + 1))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing(shared_url: str, key: str, tmp_path: Path, method: str) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    context: Any = multiprocessing.get_context(method)
    with context.Pool(3) as pool:
        pool.starmap(work, [(shared_url, key, str(number))] * 12)
    assert number.read_text() == "12"


def accepts(path: str) -> bool:
    """The socket is there a moment before it is listened to."""
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(path) == 0


def ask(path: str, words: str) -> str:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(path)
        connection = http.client.HTTPConnection("localhost")
        connection.sock = raw
        connection.request("GET", words)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        return text


def visit(path: str, answers: list[str]) -> None:
    for _ in range(5):
        answers.append(ask(path, "/add"))


@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_gunicorn_preload(shared_url: str, key: str, tmp_path: Path, worker: str) -> None:
    """The master makes the client and takes a lock; its workers use the client."""
    number, listens = tmp_path / "number", str(tmp_path / "socket")
    number.write_text("0")
    environment = {**os.environ, "STORE": shared_url, "KEY": key, "NUMBER": str(number)}
    program = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3", "--worker-class", worker]
    program += ["--bind", f"unix:{listens}", "wsgi_app:app"]
    server = subprocess.Popen(
        program, cwd=HERE / "apps", env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: server.poll() is not None or accepts(listens))
        assert server.poll() is None, server.stderr and server.stderr.read()
        answers: list[str] = []
        visitors = [threading.Thread(target=visit, args=(listens, answers)) for _ in range(6)]
        for visitor in visitors:
            visitor.start()
        for visitor in visitors:
            visitor.join()
        assert sorted(map(int, answers)) == list(range(1, 31))
        assert ask(listens, "/master") == "guard refused, lock held"
    finally:
        server.terminate()
        _, errors = server.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_uwsgi(shared_url: str, key: str, tmp_path: Path, lazy: bool, threads: int) -> None:
    """The master makes the client and takes a lock, or with `lazy-apps` each worker its own."""
    number, listens = tmp_path / "number", str(tmp_path / "socket")
    number.write_text("0")
    environment = {**os.environ, "STORE": shared_url, "KEY": key, "NUMBER": str(number)}
    program = [sys.executable, "-c", "import pyuwsgi; pyuwsgi.run()", "--master", "--die-on-term"]
    program += ["--http-socket", listens, "--module", "wsgi_app:app", "--processes", "3"]
    # With one thread it lets no other thread of Python run: leasehold's is none of Python's.
    program += ["--threads", str(threads)] if threads > 1 else []
    program += ["--lazy-apps"] if lazy else []
    with (tmp_path / "log").open("w+") as log:
        server = subprocess.Popen(
            program, cwd=HERE / "apps", env=environment, stdout=log, stderr=log
        )
        try:
            # A worker that is ended while it loads goes on without an application.
            loads = 3 if lazy else 1
            said = tmp_path / "log"
            until(lambda: server.poll() or said.read_text().count("WSGI app 0") == loads)
            until(lambda: server.poll() is not None or accepts(listens))
            answers: list[str] = []
            visits = [threading.Thread(target=visit, args=(listens, answers)) for _ in range(6)]
            for one in visits:
                one.start()
            for one in visits:
                one.join()
            assert sorted(map(int, answers)) == list(range(1, 31))
            told = {ask(listens, "/master") for _ in range(6)}
            assert lazy or told == {"guard refused, lock held"}
        finally:
            server.terminate()
            try:
                server.wait(PATIENCE)
            finally:
                server.kill()
        assert "Traceback" not in said.read_text()
        # Workers release what they hold. uWSGI ends no interpreter in its master, whose lease expires.
        with leasehold.Client(shared_url) as client:
            client.mutex(f"{key}/master").lock(timeout=PATIENCE).release()


def test_celery_prefork(redis_url: str, key: str, tmp_path: Path) -> None:
    """Workers that are replaced after two tasks each, all with the client of the main process."""
    number = tmp_path / "number"
    number.write_text("0")
    environment = {**os.environ, "STORE": redis_url, "KEY": key, "NUMBER": str(number)}
    program = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--pool", "prefork"]
    program += ["--concurrency", "3", "--max-tasks-per-child", "2", "--loglevel", "WARNING"]
    program += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    worker = subprocess.Popen(
        program, cwd=HERE / "apps", env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        sys.path.insert(0, str(HERE / "apps"))
        os.environ |= {"STORE": redis_url, "KEY": key, "NUMBER": str(number)}
        import celery_app

        results = [celery_app.add.delay() for _ in range(12)]
        answers = [result.get(timeout=PATIENCE) for result in results]
        assert sorted(answers) == list(range(1, 13))
    finally:
        sys.path.remove(str(HERE / "apps"))
        worker.terminate()
        _, errors = worker.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors


def test_a_child_lets_its_parents_timers_be(memory: leasehold.Client, key: str) -> None:
    """The parent's thread may have locked them during the fork, and does not exist in the child."""
    stop = threading.Event()
    held = memory.mutex(key).lock()

    def keep_timers_busy() -> None:
        while not stop.is_set():
            with pytest.raises(leasehold.Timeout):
                memory.mutex(key).lock(timeout=0.0005)

    async def body(client: aio.Client) -> int:
        async with client.mutex(f"{key}/1").lock(), client.mutex(f"{key}/2").lock():
            await asyncio.sleep(0)
            return os.fork()

    async def main() -> None:
        client = aio.Client.of(memory)
        for _ in range(200):
            try:
                child = await body(client)
            except leasehold.Misuse:
                os._exit(7)
            if child == 0:
                os._exit(1)
            ended = until(lambda child=child: [it for it in [os.waitpid(child, os.WNOHANG)] if it[0]])
            assert os.waitstatus_to_exitcode(ended[0][1]) == 7

    threads = [threading.Thread(target=keep_timers_busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        asyncio.run(main())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        held.release()
