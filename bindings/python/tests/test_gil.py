"""No thread of leasehold needs the interpreter: a lease is renewed whatever holds it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import until

import leasehold
from leasehold import aio

# The lease's length; the interpreter is held for three times as long. On a busy machine a store may
# answer late by most of a second.
TTL = 3.0


def hog(seconds: float) -> None:
    """Holds the interpreter's lock in one call of C."""
    end = time.monotonic() + seconds
    sleep = ctypes.PyDLL(None).usleep
    while (left := end - time.monotonic()) > 0:
        sleep(int(left * 1e6))


@pytest.fixture
def clients(tmp_path: Path, redis_url: str, postgres_url: str) -> Iterator[list[leasehold.Client]]:
    """One of each store: one held interpreter tries them all."""
    urls = ["memory:", f"embedded:{tmp_path / 'locks'}", redis_url, postgres_url]
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(leasehold.Client(url)) for url in urls]


def test_a_lease_outlives_a_call_that_holds_the_interpreter(
    clients: list[leasehold.Client], key: str
) -> None:
    guards = [client.mutex(key, ttl=TTL).lock() for client in clients]
    hog(3 * TTL)
    assert [guard.is_held for guard in guards] == [True] * 4
    assert [guard.is_held_by_store() for guard in guards] == [True] * 4
    for guard in guards:
        guard.release()


OTHER = """
import sys, leasehold
url, key = sys.argv[1:]
client = leasehold.Client(url, ttl=60)
guard = client.mutex(key).lock()
print("held", flush=True)
sys.stdin.readline()
guard.release()
"""


def test_a_wake_up_does_not_need_the_interpreter(
    shared_url: str, key: str, child: Callable
) -> None:
    """While a waiter of this loop and a thread are woken, the interpreter is held."""
    other = child(OTHER, shared_url, f"{key}/waited")
    assert other.line() == "held"

    async def main() -> None:
        async with aio.Client(shared_url) as client:
            guard = await client.mutex(key, ttl=TTL).lock()

            async def wait() -> None:
                async with client.mutex(f"{key}/waited", ttl=60).lock():
                    pass

            waits = asyncio.create_task(wait())
            while not (info := await client.inspect(f"{key}/waited")) or not info.waiters:
                await asyncio.sleep(0.005)
            other.tell()
            hog(3 * TTL)
            assert guard.is_held and await guard.is_held_by_store()
            await waits
            await guard.release()

    asyncio.run(main())


def test_calls_and_logs_do_not_need_the_interpreter(
    clients: list[leasehold.Client], key: str
) -> None:
    leasehold.log_to()
    guards = [client.mutex(key, ttl=TTL).lock() for client in clients]
    shorts = [client.mutex(f"{key}/short", ttl=0.3, renew=False).lock() for client in clients]
    called: list[int] = []
    for n, short in enumerate(shorts):
        short.on_lost(lambda n=n: called.append(n))
    hog(3 * TTL)
    assert [guard.is_held for guard in guards] == [True] * 4
    until(lambda: len(called) == 4)
    assert sorted(called) == [0, 1, 2, 3] and not any(short.is_held for short in shorts)
    for short in shorts:
        with contextlib.suppress(leasehold.Lost):
            short.release()
    for guard in guards:
        guard.release()
