"""Ends of the interpreter: what a program held is free, and nothing is printed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import PATIENCE

import leasehold

BEGIN = """
import asyncio, atexit, os, sys, threading, time, leasehold
from leasehold import aio
url, key = sys.argv[1:]
client = leasehold.Client(url, ttl=600)
guard = client.mutex(key).lock()
"""

# The program's end, and its exit code.
ENDS = {
    "a global": ("", 0),
    "in with": ("with guard: sys.exit(3)", 3),
    "in a cycle": ("loop = [guard]; loop.append(loop); del guard", 0),
    "in a frame": ("def f():\n    own = guard\n    sys.exit(4)\nf()", 4),
    "in a daemon thread": (
        "begun = threading.Event()\n"
        "def work():\n    guard.is_held; begun.set(); guard.lost()\n"
        "threading.Thread(target=work, daemon=True).start(); begun.wait()",
        0,
    ),
    "a waiting daemon thread": (
        "threading.Thread(target=client.mutex(key).lock, daemon=True).start(); time.sleep(0.1)",
        0,
    ),
    "in a finaliser's hands": (
        "class Holds:\n"
        "    def __init__(self, guard): self.guard = guard\n"
        "    def __del__(self, error=leasehold.Error):\n"
        "        try: self.guard.release()\n"
        "        except error: pass\n"
        "holds = Holds(guard); del guard",
        0,
    ),
    "in an executor": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(); pool.submit(lambda: guard.fence).result()",
        0,
    ),
    "with exit handlers": ("atexit.register(client.close); atexit.register(guard.release)", 0),
    "a callback on loss": ("guard.on_lost(lambda: None)", 0),
    "with a log": ("leasehold.log_to()", 0),
    "slowly, with a log": (
        "leasehold.log_to()\n"
        "class Slow:\n    def __del__(self, sleep=time.sleep): sleep(2.5)\nslow = Slow()",
        0,
    ),
    "with events": ("events = client.events(); next(events) if False else None", 0),
    "a loop that was closed": (
        "async def main():\n    global other\n"
        "    other = await aio.Client.of(client).mutex(key + '/2').lock()\n"
        "asyncio.run(main())",
        0,
    ),
    "a loop that exits": (
        "async def main():\n"
        "    async with aio.Client.of(client).mutex(key + '/2').lock(): sys.exit(5)\n"
        "asyncio.run(main())",
        5,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_was_held_is_free(
    shared: leasehold.Client, shared_url: str, key: str, child: Callable, end: str
) -> None:
    source, expected = ENDS[end]
    program = child(BEGIN + source + "\n", shared_url, key)
    code, out, errors = program.end()
    assert (code, out, errors) == (expected, "", "")
    shared.mutex(key).lock(timeout=PATIENCE).release()
    shared.mutex(f"{key}/2").lock(timeout=PATIENCE).release()


@pytest.mark.parametrize("end", ["os._exit(6)", "os.kill(os.getpid(), 9)"])
def test_a_process_without_an_end(
    shared: leasehold.Client, shared_url: str, key: str, child: Callable, end: str
) -> None:
    """The lock is free at once in a directory, and after its ttl on a server."""
    source = BEGIN.replace("ttl=600", "ttl=1") + end + "\n"
    code, _, errors = child(source, shared_url, key).end()
    assert code in (6, -9) and errors == ""
    shared.mutex(key).lock(timeout=PATIENCE).release()


def test_a_held_lock_during_an_import(
    shared: leasehold.Client, shared_url: str, key: str, child: Callable, tmp_path
) -> None:
    (tmp_path / "holds.py").write_text(
        "import sys, leasehold\n"
        "client = leasehold.Client(sys.argv[1], ttl=600)\n"
        "guard = client.mutex(sys.argv[2]).lock()\n"
    )
    source = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import holds; sys.exit(8)"
    assert child(source, shared_url, key).end() == (8, "", "")
    shared.mutex(key).lock(timeout=PATIENCE).release()


def test_the_import_is_light(child: Callable) -> None:
    source = "import sys, leasehold; print(sorted({'asyncio', 'logging'} & sys.modules.keys()))"
    assert child(source).end() == (0, "[]\n", "")


def test_an_exit_handler_waits_for_a_daemon_thread(child: Callable) -> None:
    """It was registered first, so it runs after the clients are closed."""
    source = """
import atexit, threading
stop = threading.Event()

@atexit.register
def join():
    stop.set()
    thread.join()
    print("joined")

import leasehold
client = leasehold.Client("memory:")

def work():
    stop.wait()
    try:
        client.mutex("k").lock()
    except leasehold.Closed:
        print("closed")

thread = threading.Thread(target=work, daemon=True)
thread.start()
"""
    assert child(source).end() == (0, "closed\njoined\n", "")
