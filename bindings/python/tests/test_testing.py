"""What users test with: fixtures, and a way to lose a lock."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from conftest import PATIENCE, until

import leasehold
from leasehold import aio, testing

pytest_plugins = ["pytester"]


def test_a_lock_is_lost(leasehold_client: leasehold.Client) -> None:
    guard = leasehold_client.mutex("k").lock()
    testing.lose(leasehold_client, guard)
    assert not guard.is_held and guard.lost(timeout=0)
    leasehold_client.mutex("k").lock(timeout=0).release()
    with pytest.raises(leasehold.Lost):
        guard.release()


def test_a_lock_is_lost_in_asyncio(leasehold_client: leasehold.Client) -> None:
    async def main() -> None:
        client = aio.Client.of(leasehold_client)
        with pytest.raises(leasehold.Lost):
            async with client.mutex("k").lock() as guard:
                await testing.lose_async(client, guard)
                await asyncio.sleep(60)

    asyncio.run(main())


def test_the_store_is_that_of_the_environment(leasehold_store: str) -> None:
    with leasehold.Client() as one, leasehold.Client(leasehold_store) as two:
        with one.mutex("k").lock():
            assert two.mutex("k").try_lock() is None


def test_the_plugin_is_installed(pytester: pytest.Pytester) -> None:
    """It comes with the package, without a line in the user's conftest.py."""
    pytester.makepyfile(
        """
        import leasehold

        def test_it(leasehold_client: leasehold.Client, leasehold_store: str) -> None:
            with leasehold_client.mutex("k").lock() as guard:
                assert guard.is_held
            with leasehold.Client() as other:
                assert other.mutex("k").try_lock()
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_lease_ends_at_once(
    leasehold_client: leasehold.Client, leasehold_clock: testing.FakeClock
) -> None:
    guard = leasehold_client.mutex("k", ttl=3600).lock()
    leasehold_clock.advance(3000)
    assert guard.is_held and guard.remaining < 3600
    assert leasehold_client.mutex("k").try_lock() is None
    leasehold_clock.advance(timedelta(hours=1))
    assert not guard.is_held and guard.remaining == 0 and guard.lost()
    with pytest.raises(leasehold.Lost):
        print(guard.fence)
    with leasehold_client.mutex("k").lock(timeout=0) as later:
        assert later.fence > guard.fence_even_if_lost
    with pytest.raises(leasehold.Lost):
        guard.release()


def test_steps_have_a_lease_renewed(
    leasehold_client: leasehold.Client, leasehold_clock: testing.FakeClock
) -> None:
    with leasehold_client.mutex("k", ttl=30).lock() as guard:
        for _ in range(20):
            leasehold_clock.advance(9)
            assert guard.is_held and not guard.is_at_risk and guard.remaining > 9
        assert guard.is_held_by_store()
    once = leasehold_client.mutex("k", ttl=30, max_hold=60).lock()
    for _ in range(8):
        leasehold_clock.advance(9)
    assert not once.is_held and leasehold_client.inspect("k") is None


def test_time_stands_still(
    leasehold_client: leasehold.Client, leasehold_clock: testing.FakeClock
) -> None:
    guard = leasehold_client.mutex("k", ttl=1, renew=False).lock()
    remaining = guard.remaining
    time.sleep(1.2)
    assert guard.is_held and guard.remaining == remaining
    guard.release()


def test_a_waiter_counts_on_the_clock(
    leasehold_client: leasehold.Client, leasehold_clock: testing.FakeClock
) -> None:
    mutex = leasehold_client.mutex("k", ttl=7200)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            mutex.lock(timeout=timedelta(hours=1))
        except leasehold.Timeout as error:
            raised.append(error)

    with mutex.lock():
        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: leasehold_client.inspect("k").waiters)  # type: ignore[union-attr]
        for _ in range(35):
            leasehold_clock.advance(100)
        assert waiter.is_alive()
        leasehold_clock.advance(101)
        waiter.join(PATIENCE)
    assert len(raised) == 1


def test_what_waits_is_told(
    leasehold_client: leasehold.Client, leasehold_clock: testing.FakeClock
) -> None:
    told = threading.Event()
    guard = leasehold_client.mutex("k").lock()
    guard.on_lost(told.set)
    waiter = threading.Thread(target=guard.lost)
    waiter.start()
    leasehold_clock.advance(60)
    waiter.join(PATIENCE)
    assert told.wait(PATIENCE) and not waiter.is_alive()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loss_cancels_a_task(
    leasehold_client: leasehold.Client, leasehold_clock: testing.FakeClock, loop: Any
) -> None:
    async def main() -> None:
        async with aio.Client.of(leasehold_client) as client:
            with pytest.raises(leasehold.Lost):
                async with client.mutex("k").lock():
                    leasehold_clock.advance(40)
                    await asyncio.sleep(PATIENCE)
            async with client.mutex("k").lock(timeout=0):
                waits = asyncio.ensure_future(client.mutex("k").lock(timeout=20))
                await asyncio.sleep(0.01)
                leasehold_clock.advance(9)
                await asyncio.sleep(0.01)
                assert not waits.done()
                leasehold_clock.advance(12)
                with pytest.raises(leasehold.Timeout):
                    await asyncio.wait_for(waits, PATIENCE)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def test_a_period_begins_anew(
    leasehold_client: leasehold.Client, leasehold_clock: testing.FakeClock
) -> None:
    job = leasehold_client.once_per("nightly", timedelta(days=1))
    with job.start() or pytest.fail("it has run"):
        pass
    leasehold_clock.advance(timedelta(hours=23))
    assert job.start() is None
    leasehold_clock.advance(timedelta(hours=1))
    with job.start() or pytest.fail("it has run"):
        pass


def test_the_clock_is_for_memory(tmp_path: Path) -> None:
    with pytest.raises(leasehold.Config, match="memory:"):
        leasehold.Client(f"embedded:{tmp_path}/locks", clock=testing.FakeClock())
    with pytest.raises(TypeError):
        leasehold.Client("memory:", clock=time.time)  # type: ignore[arg-type]


def test_the_thread_of_a_clock_ends_with_it() -> None:
    def threads() -> set[str]:
        found = set()
        for task in Path("/proc/self/task").iterdir():
            # A thread may end meanwhile.
            with contextlib.suppress(OSError):
                if (task / "comm").read_text() == "leasehold-clock\n":
                    found.add(task.name)
        return found

    before = threads()
    clock = testing.FakeClock()
    client = testing.memory_client(clock)
    guard = client.mutex("k").lock()
    # A thread names itself once it runs.
    own = until(lambda: threads() - before)
    clock.advance(1)
    del clock, client
    assert guard.is_held
    guard.release()
    del guard
    until(lambda: not threads() & own)


def test_the_fences_statements_are_those_of_rust() -> None:
    from leasehold.fencing import postgresql

    rust = Path(__file__).parents[3] / "crates/leasehold/src/fencing/postgresql.rs"
    text = rust.read_text().replace("\\\n", "")
    for name in postgresql.__all__:
        ours = getattr(postgresql, name).replace("%(resource)s", "$1").replace("%(fence)s", "$2")
        assert f'"{ours}"'.replace('"C"', '\\"C\\"') in text, name
