"""Locks in asyncio: kinds, cancellation, losses, loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import uvloop

import leasehold
from leasehold import aio, testing

PATIENCE = 60

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on each kind of loop; on asyncio's in its debug mode."""

    def go(main: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(PATIENCE):
                await main()

        if request.param == "uvloop":
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(whole())
        else:
            with asyncio.Runner(debug=True) as runner:
                runner.run(whole())

    return go


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[aio.Client]:
    # A busy machine may answer late, which is no part of what these tests judge.
    async with aio.Client(url, call_timeout=30) as client:
        yield client


async def until(what: Callable[[], Awaitable[Any]]) -> Any:
    while not (value := await what()):
        await asyncio.sleep(0.005)
    return value


async def waiters(client: aio.Client, key: str) -> int:
    info = await client.inspect(key)
    return len(info.waiters) if info else 0


def test_a_mutex_is_held_by_one(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            mutex = client.mutex(key)
            async with mutex.lock() as guard:
                assert guard.is_held and guard.fence > 0 and guard.key == key
                assert await guard.is_held_by_store()
                assert await mutex.try_lock() is None
                with pytest.raises(leasehold.Timeout) as caught:
                    await mutex.lock(timeout=0)
                assert caught.value.holder and caught.value.holder.fence == guard.fence
            assert not guard.is_held
            again = await mutex.lock(timeout=timedelta(seconds=30))
            await again.release()
            with pytest.raises(leasehold.Misuse):
                await again.release()

    run(main)


def test_all_kinds(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            lock = client.rwlock(f"{key}/r")
            async with lock.read(), lock.read():
                assert await lock.try_write() is None
            async with lock.write():
                assert await lock.try_read() is None
            writer = await (await lock.read()).upgrade()
            reader = await writer.downgrade()
            await reader.release()

            permits = client.semaphore(f"{key}/s", 2)
            async with permits.acquire(2):
                assert await permits.available() == 0
                assert await permits.try_acquire() is None
            assert (await permits.set_limit(3)).limit == 3

            multi = client.multi([f"{key}/x", f"{key}/y"])
            async with multi.lock() as both:
                assert len(both.fences) == 2 and await multi.try_lock() is None

            owner = leasehold.Owner()
            reentrant = client.reentrant(f"{key}/e", owner)
            async with reentrant.lock(), reentrant.lock() as inner:
                assert inner.holds == 2

            job = client.once_per(f"{key}/o", 3600)
            async with await job.start() as guard:  # type: ignore[union-attr]
                assert guard.is_held
            assert await job.start() is None

            election = client.election(f"{key}/l", owner="ann")
            async with election.campaign() as lead:
                leader = await election.leader()
                assert leader and (leader.owner, leader.fence) == ("ann", lead.fence)
                assert await election.try_campaign() is None
                async for seen in election.observe():
                    assert seen == leader
                    break

    run(main)


def test_decorators(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:

            @client.locked(key + "-{account}", timeout=0)
            async def sync(account: int, lease: Any = None) -> str:
                assert lease.is_held
                return str(lease.key)

            assert await sync(7) == f"{key}-7"
            async with client.mutex(f"{key}-7").lock():
                with pytest.raises(leasehold.Timeout):
                    await sync(7)

            ran = []

            @client.once_per(f"{key}/once", 3600).once
            async def report() -> None:
                ran.append(1)

            await report()
            await report()
            assert ran == [1]

    run(main)


def test_looking_and_intervening(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            guard = await client.mutex(key, owner="ann").lock()
            info = await client.inspect(key)
            assert info and info.holders[0].owner == "ann"
            assert [lock.key for lock in await client.list(key)] == [key]
            assert await client.ask(key) == 1
            await guard.asked()
            assert await client.force_release(key, guard.fence) == "released"
            assert not await guard.is_held_by_store()
            with pytest.raises(leasehold.Lost):
                await guard.renew_to(30)
            await guard.lost()
            with pytest.raises(leasehold.Lost):
                await guard.release()
            secret = await (await client.mutex(key).lock()).detach()
            await (await client.adopt(secret)).release()
            await client.examine()
            guard = await client.mutex(key).lock()
            await client.release_all()
            assert not guard.is_held and not await client.list(key)

    run(main)


def test_both_colours_share_a_client(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        with leasehold.Client(url) as sync:
            client = aio.Client.of(sync)
            async with client.mutex(key).lock():
                assert sync.mutex(key).try_lock() is None
            sync.mutex(key).lock(timeout=0).release()

    run(main)


def test_a_wait_that_is_cancelled_leaves_the_queue(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            async with client.mutex(key).lock():
                task = asyncio.create_task(take(client, key))
                await until(lambda: waiters(client, key))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(take(client, key), 0.05)

                async def none() -> bool:
                    return await waiters(client, key) == 0

                await until(none)
            await (await client.mutex(key).lock(timeout=30)).release()

    run(main)


async def take(client: aio.Client, key: str) -> None:
    async with client.mutex(key).lock():
        pass


@pytest.mark.parametrize("contended", [False, True])
def test_a_cancel_after_k_turns_leaves_nothing(
    run: Run, url: str, key: str, contended: bool
) -> None:
    """For all k, until the work ends before its cancel."""

    async def main() -> None:
        async with opened(url) as client:
            mutex = client.mutex(key, ttl=60)
            for k in range(1_000_000):
                holder = await mutex.lock() if contended else None
                task = asyncio.create_task(work(mutex))
                for turn in range(k):
                    if holder and turn == 3:
                        await holder.release()
                        holder = None
                    await asyncio.sleep(0)
                ended = task.done()
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
                if holder:
                    await holder.release()
                await (await mutex.lock(timeout=30)).release()
                if ended and not holder:
                    break
                # A request is under way for many turns, all of them alike.
                if k > 60:
                    await asyncio.sleep(0.0002 * (k - 60))

    async def work(mutex: aio.Mutex) -> None:
        async with mutex.lock():
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    run(main)


def test_a_storm_of_cancels(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        state = {"inside": 0, "most": 0, "granted": 0, "cancelled": 0}
        chance = random.Random(5)

        async def one(mutex: aio.Mutex) -> None:
            async with mutex.lock():
                state["inside"] += 1
                state["most"] = max(state["most"], state["inside"])
                state["granted"] += 1
                try:
                    await asyncio.sleep(chance.random() * 0.002)
                finally:
                    state["inside"] -= 1

        async def driver(mutex: aio.Mutex) -> None:
            for turn in range(25):
                task = asyncio.create_task(one(mutex))
                await asyncio.sleep(chance.random() * 0.01)
                # The last one gets the lock, however slow the store is.
                for _ in range(chance.randint(1, 3) if turn < 24 else 0):
                    task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                state["cancelled"] += isinstance(outcome, asyncio.CancelledError)
                assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome

        async with opened(url) as client:
            mutex = client.mutex(key)
            await asyncio.gather(*(driver(mutex) for _ in range(16)))
            await (await mutex.lock(timeout=30)).release()
            info = await client.inspect(key)
            assert info is None or not (info.holders or info.waiters)
        assert state["most"] == 1 and state["inside"] == 0 and state["cancelled"] > 0

    run(main)


def test_a_cancelled_release_goes_on(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            for turns in range(6):
                guard = await client.mutex(key, ttl=60).lock()

                async def release(guard: aio.Guard = guard) -> None:
                    await guard.release()

                task = asyncio.create_task(release())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if turns == 0:
                    # It never began.
                    await guard.release()
                await (await client.mutex(key).lock(timeout=30)).release()

    run(main)


async def taken_away(client: aio.Client, guard: aio.Guard) -> None:
    """The rest of a body whose lock is taken away meanwhile."""
    await asyncio.gather(testing.lose_async(client, guard), asyncio.sleep(PATIENCE))


def test_a_loss_cancels_the_body_and_comes_out(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            with pytest.raises(leasehold.Lost) as caught:
                async with client.mutex(key).lock() as guard:
                    await taken_away(client, guard)
            task = asyncio.current_task()
            assert task and task.cancelling() == 0
            assert isinstance(caught.value.__cause__, asyncio.CancelledError)
            await asyncio.sleep(0)

    run(main)


def test_a_loss_that_precedes_the_loops_next_turn_cancels_the_body(run: Run, key: str) -> None:
    async def main() -> None:
        async with opened("memory:") as client:
            with pytest.raises(leasehold.Lost):
                async with client.mutex(key, ttl=1, renew=False).lock() as guard:
                    while guard.is_held:
                        pass
                    await asyncio.sleep(PATIENCE)

    run(main)


def test_a_loss_is_only_told_if_the_caller_wants_that(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            told = False
            # In the store it may have been held to its end: a loss is reported before that.
            with contextlib.suppress(leasehold.Late):
                lock = client.mutex(key, ttl=0.3, renew=False).lock(cancel_on_loss=False)
                async with lock as guard:
                    await guard.lost()
                    await asyncio.sleep(0)
                    told = True
            assert told

    run(main)


def test_an_outer_cancel_stays_a_cancel(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            inside = asyncio.Event()

            async def hold() -> None:
                async with client.mutex(key).lock():
                    inside.set()
                    await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(hold())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await (await client.mutex(key).lock(timeout=30)).release()

    run(main)


def test_an_outer_cancel_together_with_a_loss_stays_a_cancel(
    run: Run, url: str, key: str
) -> None:
    async def main() -> None:
        async with opened(url) as client:
            lost = asyncio.Event()

            async def hold() -> None:
                async with client.mutex(key).lock() as guard:
                    try:
                        await taken_away(client, guard)
                    except asyncio.CancelledError:
                        lost.set()
                        await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(hold())
            await lost.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main)


def test_a_loss_fails_a_task_group(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:

            async def hold() -> None:
                async with client.mutex(key).lock() as guard:
                    await taken_away(client, guard)

            with pytest.raises(ExceptionGroup) as caught:
                async with asyncio.TaskGroup() as group:
                    group.create_task(hold())
                    other = group.create_task(asyncio.sleep(PATIENCE))
            assert [type(it) for it in caught.value.exceptions] == [leasehold.Lost]
            assert other.cancelled()

    run(main)


def test_a_timeout_around_a_hold(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.05), client.mutex(key).lock():
                    await asyncio.sleep(PATIENCE)
            assert not isinstance(caught.value, leasehold.Error)
            with pytest.raises(leasehold.Lost):
                async with asyncio.timeout(PATIENCE), client.mutex(key).lock() as guard:
                    await taken_away(client, guard)
            # The timeout inside of the hold.
            async with client.mutex(key).lock():
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await asyncio.sleep(PATIENCE)

    run(main)


def test_an_error_of_the_body_wins_over_a_loss(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            with pytest.raises(KeyError) as caught:
                async with client.mutex(key).lock() as guard:
                    try:
                        await taken_away(client, guard)
                    except asyncio.CancelledError:
                        raise KeyError("of the body") from None
            assert caught.value.__notes__
            task = asyncio.current_task()
            assert task and task.cancelling() == 0

    run(main)


def test_a_leader_leads_until_it_is_stopped(run: Run, url: str, key: str) -> None:
    async def main() -> None:
        async with opened(url) as client:
            terms = []
            stop = asyncio.Event()

            async def body(lease: Any) -> str:
                terms.append(lease.fence)
                if len(terms) == 1:
                    await client.force_release(key, lease.fence)
                    await lease.is_held_by_store()
                    await asyncio.sleep(PATIENCE)
                return "led"

            election = client.election(key, ttl=1)
            assert await election.run(body, stop) == "led"
            assert len(terms) == 2 and terms[1] > terms[0]

            async def idle(lease: Any) -> None:
                stop.set()
                await asyncio.sleep(PATIENCE)

            assert await client.election(key).run(idle, stop) is None
            assert await client.election(key).leader() is None

    run(main)


def test_an_awaitable_is_for_one_await(run: Run, key: str) -> None:
    async def main() -> None:
        async with opened("memory:") as client:
            lock = client.mutex(key).lock()
            guard = await lock
            with pytest.raises(leasehold.Misuse):
                await lock
            await guard.release()

    run(main)


def test_an_awaitable_has_one_awaiter(run: Run, key: str) -> None:
    async def main() -> None:
        async with opened("memory:") as client:
            mutex = client.mutex(key)
            guard = await mutex.lock()
            wait = mutex.lock()

            async def awaits() -> aio.Guard:
                return await wait

            first = asyncio.create_task(awaits())
            await asyncio.sleep(0.01)
            with pytest.raises(leasehold.Misuse):
                await awaits()
            await guard.release()
            await (await first).release()

    run(main)


def test_an_awaitable_raises_what_is_thrown_as_a_coroutine_does(run: Run, key: str) -> None:
    async def main() -> None:
        async with opened("memory:") as client:
            for thrown in [(ValueError,), (ValueError, "why"), (ValueError("why"),)]:
                with pytest.raises(ValueError) as caught:
                    client.mutex(key).lock().throw(*thrown)
                assert caught.value.args in [(), ("why",)]

    run(main)


def test_a_loop_can_go_on_in_another_thread(key: str) -> None:
    client = aio.Client("memory:")
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[aio.Guard, asyncio.Task[aio.Guard]]:
        guard = await client.mutex(key).lock()
        waits = asyncio.ensure_future(client.mutex(key).lock())
        await asyncio.sleep(0.01)
        return guard, waits

    async def end(guard: aio.Guard, waits: asyncio.Task[aio.Guard]) -> None:
        await guard.release()
        await (await waits).release()
        ended.append(True)

    ended: list[bool] = []
    begun = loop.run_until_complete(begin())
    thread = threading.Thread(target=lambda: loop.run_until_complete(end(*begun)))
    thread.start()
    thread.join(PATIENCE)
    assert ended
    loop.close()


@pytest.mark.parametrize("waits", [False, True])
def test_a_circle_through_a_guard_is_collected(
    memory: leasehold.Client, key: str, waits: bool
) -> None:
    """A call on a loss has the task that has the guard, and the loop ends meanwhile."""
    client = aio.Client.of(memory)

    async def holds() -> None:
        task = asyncio.current_task()
        assert task
        if waits:
            guard = await client.mutex(key).lock()
            guard.on_lost(task.cancel)
            await guard.lost()
        async with client.mutex(key).lock() as guard:
            guard.on_lost(task.cancel)
            await asyncio.sleep(PATIENCE)

    async def begin() -> weakref.ref[asyncio.Task[None]]:
        task = asyncio.create_task(holds())
        await asyncio.sleep(0.01)
        return weakref.ref(task)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    task, old = loop.run_until_complete(begin()), weakref.ref(loop)
    loop.close()
    del loop
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    assert task() is None and old() is None
    memory.mutex(key).lock(timeout=PATIENCE).release()


def test_a_loop_that_ends_gives_up_what_it_has(shared_url: str, key: str) -> None:
    """Nobody releases; the loop is closed with a guard and a waiter in it."""
    client = aio.Client(shared_url)

    async def main() -> None:
        guard = await client.mutex(key, ttl=60).lock()
        asyncio.create_task(take(client, key))  # noqa: RUF006
        await until(lambda: waiters(client, key))
        assert guard.is_held

    asyncio.run(main())
    with leasehold.Client(shared_url) as other:
        other.mutex(key).lock(timeout=30).release()


def test_three_loops_share_a_client(shared_url: str, key: str) -> None:
    client = aio.Client(shared_url)
    turns: list[int] = []

    def loop(n: int) -> None:
        async def main() -> None:
            for _ in range(60):
                async with client.mutex(key).lock():
                    turns.append(n)

        asyncio.run(main())

    threads = [threading.Thread(target=loop, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(turns) == [0] * 60 + [1] * 60 + [2] * 60


def test_context_variables_are_the_tasks(run: Run, key: str) -> None:
    import contextvars

    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")

    async def main() -> None:
        async with opened("memory:") as client:
            request.set("7")
            async with client.mutex(key).lock():
                assert request.get() == "7"

    run(main)


def test_a_wait_that_blocks_its_loop_warns(memory: leasehold.Client, key: str) -> None:
    """The holder may be a task of the same loop: such a wait never ends."""
    mutex = memory.mutex(key)

    async def main() -> None:
        async with aio.Client.of(memory).mutex(key).lock():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(leasehold.Timeout):
                    await asyncio.to_thread(mutex.lock, 1.5)
                with pytest.raises(RuntimeWarning, match="use leasehold.aio"):
                    mutex.lock()
            while memory.inspect(key).waiters:  # type: ignore[union-attr]
                await asyncio.sleep(0.005)

    asyncio.run(main())
