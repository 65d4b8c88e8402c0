"""Memory does not grow with the number of cycles."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable

import pytest

import leasehold
from leasehold import aio

CYCLES = 100_000
# What an allocator may keep.
MAY_GROW = 3_000_000


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grows_by(cycle: Callable[[int], None], cycles: int) -> int:
    for n in range(cycles // 10):
        cycle(n)
    before = resident()
    for n in range(cycles):
        cycle(n)
    return resident() - before


def test_cycles(memory: leasehold.Client) -> None:
    mutex = memory.mutex("k")

    def cycle(_: int) -> None:
        with mutex.lock():
            pass

    assert grows_by(cycle, CYCLES) < MAY_GROW


def test_kinds_names_and_errors(memory: leasehold.Client) -> None:
    held = memory.mutex("held").lock()

    def cycle(n: int) -> None:
        with memory.mutex(f"{n % 100}", ttl=5, owner="me").lock() as guard:
            guard.on_lost(lambda: None)
            assert guard.fence
        with pytest.raises(leasehold.Timeout):
            memory.mutex("held").lock(timeout=0)
        memory.semaphore("s", 2).acquire().release()
        memory.inspect("held")

    assert grows_by(cycle, CYCLES // 20) < MAY_GROW
    held.release()


def test_holds_within_one_turn_of_a_loop(memory: leasehold.Client) -> None:
    """What is ready at once keeps the loop's turn."""

    async def main() -> int:
        mutex = aio.Client.of(memory).mutex("k")
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def cycles(count: int) -> None:
            for _ in range(count):
                async with mutex.lock():
                    pass

        counting = asyncio.create_task(count_turns())
        await asyncio.sleep(0)
        await cycles(CYCLES // 10)
        before = resident()
        await cycles(CYCLES)
        grown = resident() - before
        assert turns == 1
        counting.cancel()
        return grown

    assert asyncio.run(main()) < MAY_GROW


def test_awaits_and_cancels(memory: leasehold.Client) -> None:
    async def main() -> int:
        client = aio.Client.of(memory)
        mutex = client.mutex("k")

        async def wait() -> None:
            async with mutex.lock():
                pass

        async def cycles(count: int) -> None:
            for _ in range(count):
                async with mutex.lock():
                    task = asyncio.create_task(wait())
                    await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        await cycles(CYCLES // 200)
        before = resident()
        await cycles(CYCLES // 40)
        return resident() - before

    assert asyncio.run(main()) < MAY_GROW


def test_clients(tmp_path) -> None:
    def cycle(_: int) -> None:
        with leasehold.Client(f"embedded:{tmp_path / 'locks'}") as client:
            client.mutex("k").lock().release()

    assert grows_by(cycle, 300) < MAY_GROW


def test_references_are_let_go(memory: leasehold.Client) -> None:
    class Owned:
        pass

    owned = Owned()
    before = sys.getrefcount(owned)
    guard = memory.mutex("k").lock()
    guard.on_lost(lambda owned=owned: None)
    guard.release()
    del guard
    gc.collect()
    assert sys.getrefcount(owned) == before
