"""Signals in waiting calls."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
from conftest import PATIENCE, until

import leasehold

WAITS = {
    "lock": "client.mutex(key).lock()",
    "lock(timeout)": "client.mutex(key).lock(timeout=600)",
    "read": "client.rwlock(key).read()",
    "multi": "client.multi([key, key + '/b']).lock()",
    "campaign": "client.election(key).campaign()",
    "lost": "client.mutex(key + '/own').lock().lost()",
    "asked": "client.mutex(key + '/own').lock().asked()",
    "observe": "[None for _ in client.election(key + '/none').observe()]",
    "events": "[None for _ in client.events()]",
    "acquire": "client.semaphore(key + '/permits', 1).acquire()",
}

PROGRAM = """
import sys, leasehold
url, key = sys.argv[1:]
client = leasehold.Client(url, ttl=60)
permit = client.semaphore(key + "/permits", 1).acquire()
print("waits", flush=True)
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
permit.release()
"""


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(
    shared: leasehold.Client, shared_url: str, key: str, child: Callable, wait: str
) -> None:
    with shared.mutex(key).lock():
        program = child(PROGRAM.format(wait=WAITS[wait]), shared_url, key)
        assert program.line() == "waits"
        if wait in ("lock", "lock(timeout)", "read", "campaign"):
            until(lambda: shared.inspect(key).waiters)  # type: ignore[union-attr]
        else:
            # The call begins after the line; until then, Ctrl-C ends the program elsewhere.
            until(lambda: is_asleep(program.process.pid))
        program.process.send_signal(signal.SIGINT)
        assert program.line() == "interrupted"
        code, _, errors = program.end()
        assert code == 0 and "Traceback" not in errors
        until(lambda: not shared.inspect(key).waiters)  # type: ignore[union-attr]


def is_asleep(pid: int) -> bool:
    """Whether the main thread waits in a system call."""
    with open(f"/proc/{pid}/task/{pid}/wchan") as where, open(f"/proc/{pid}/stat") as state:
        place, letter = where.read(), state.read().rpartition(")")[2].split()[0]
    return letter == "S" and place != "" and "pipe" not in place


def test_ctrl_c_ends_a_wait_among_other_threads(
    shared: leasehold.Client, shared_url: str, key: str, child: Callable
) -> None:
    source = """
import os, sys, threading, time, leasehold
url, key = sys.argv[1:]
client = leasehold.Client(url)
for _ in range(8):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    threading.Thread(target=client.mutex(key).lock, daemon=True).start()
try:
    client.mutex(key, owner="main").lock()
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""
    with shared.mutex(key).lock():
        program = child(source, shared_url, key)
        until(lambda: any(w.owner == "main" for w in shared.inspect(key).waiters))  # type: ignore[union-attr]
        program.process.send_signal(signal.SIGINT)
        assert program.line() == "interrupted"


def test_a_handler_that_returns_lets_the_wait_go_on(client: leasehold.Client, key: str) -> None:
    calls: list[int] = []
    guard = client.mutex(key).lock()

    def handle(number: int, frame: object) -> None:
        calls.append(number)
        if len(calls) == 3:
            threading.Thread(target=guard.release).start()

    before = signal.signal(signal.SIGUSR1, handle)

    def signals() -> None:
        for n in range(3):
            until(lambda n=n: len(calls) == n)
            os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=signals)
    try:
        sender.start()
        client.mutex(key).lock(timeout=PATIENCE).release()
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [signal.SIGUSR1] * 3


def test_a_handler_that_raises_ends_the_wait(client: leasehold.Client, key: str) -> None:
    class Stop(Exception):
        pass

    def handle(number: int, frame: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with client.mutex(key).lock():
            sender = threading.Thread(
                target=lambda: (
                    until(lambda: client.inspect(key).waiters),  # type: ignore[union-attr]
                    os.kill(os.getpid(), signal.SIGUSR1),
                )
            )
            sender.start()
            with pytest.raises(Stop):
                client.mutex(key).lock()
            sender.join()
            until(lambda: not client.inspect(key).waiters)  # type: ignore[union-attr]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_sigterm_in_with_releases(
    shared: leasehold.Client, shared_url: str, key: str, child: Callable
) -> None:
    source = """
import signal, sys, time, leasehold
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
url, key = sys.argv[1:]
with leasehold.Client(url) as client, client.mutex(key, ttl=600).lock():
    print("held", flush=True)
    while True:
        # Not for long: a signal just before a sleep begins is handled after it.
        time.sleep(0.05)
"""
    program = child(source, shared_url, key)
    assert program.line() == "held"
    program.process.terminate()
    code, _, errors = program.end()
    assert code == 7 and errors == ""
    shared.mutex(key).lock(timeout=0).release()


@pytest.mark.parametrize("wait", ["lock", "multi", "acquire", "lost"])
def test_a_signal_that_another_thread_gets_ends_a_wait(
    shared: leasehold.Client, shared_url: str, key: str, child: Callable, wait: str
) -> None:
    """The system may give it to any thread, and a wait may be woken often meanwhile."""
    source = PROGRAM.replace(
        'print("waits", flush=True)',
        """
import signal, threading
def interrupt():
    print("waits", flush=True)
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
""",
    )
    with shared.mutex(key).lock():
        program = child(source.format(wait=WAITS[wait]), shared_url, key)
        assert program.line() == "waits"
        until(lambda: is_asleep(program.process.pid))
        program.tell()
        assert program.line() == "interrupted"
        assert program.end()[0] == 0
