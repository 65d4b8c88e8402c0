"""No thread of leasehold needs the interpreter: a lease is renewed whatever holds it."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable

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


def test_a_lease_outlives_a_call_that_holds_the_interpreter(
    client: leasehold.Client, key: str
) -> None:
    with client.mutex(key, ttl=TTL).lock() as guard:
        hog(3 * TTL)
        assert guard.is_held
        assert guard.is_held_by_store()


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


def test_calls_and_logs_do_not_need_the_interpreter(client: leasehold.Client, key: str) -> None:
    leasehold.log_to()
    with client.mutex(key, ttl=TTL).lock() as guard:
        short = client.mutex(f"{key}/short", ttl=0.3, renew=False).lock()
        called: list[int] = []
        short.on_lost(lambda: called.append(1))
        hog(3 * TTL)
        assert guard.is_held
        end = time.monotonic() + 60
        while not called and time.monotonic() < end:
            time.sleep(0.01)
        assert called == [1] and not short.is_held
        try:
            short.release()
        except leasehold.Lost:
            pass
