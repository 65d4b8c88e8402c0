"""For type checkers: what calls return. It is not run."""

from collections.abc import Iterator
from datetime import timedelta
from typing import assert_type

import leasehold
from leasehold import aio, testing


def sync(client: leasehold.Client) -> None:
    mutex = client.mutex("k", ttl=timedelta(seconds=5), owner="me", fairness="fifo")
    with mutex.lock(timeout=5) as guard:
        assert_type(guard, leasehold.Guard)
        assert_type(guard.fence, int)
        assert_type(guard.lost(0.1), bool)
    assert_type(mutex.try_lock(), leasehold.Guard | None)
    with client.rwlock("k").read() as reader:
        assert_type(reader, leasehold.ReadGuard)
    assert_type(client.rwlock("k").read().upgrade(), leasehold.WriteGuard)
    assert_type(client.semaphore("k", 2).acquire(2), leasehold.SemaphoreGuard)
    assert_type(client.multi(["a", "b"]).lock().fences, dict[str, int])
    assert_type(client.once_per("k", 60).start(), leasehold.OnceGuard | None)
    assert_type(client.election("k").leader(), leasehold.Leader | None)
    assert_type(client.election("k").observe(), Iterator[leasehold.Leader | None])
    assert_type(client.inspect("k"), leasehold.LockInfo | None)
    testing.lose(client, guard)
    clock = testing.FakeClock()
    assert_type(testing.memory_client(clock), leasehold.Client)
    leasehold.Client("memory:", clock=clock, log=3)
    clock.advance(timedelta(hours=1))

    @client.locked("k-{n}")
    def work(n: int) -> str:
        return str(n)

    assert_type(work(1), str)

    try:
        mutex.lock(timeout=0)
    except leasehold.Timeout as error:
        assert_type(error.holder, leasehold.Holder | None)


async def asynchronous(client: aio.Client) -> None:
    mutex = client.mutex("k", ttl=5)
    async with mutex.lock(timeout=5) as guard:
        assert_type(guard, aio.Guard)
    assert_type(await mutex.lock(), aio.Guard)
    assert_type(await mutex.try_lock(), aio.Guard | None)
    assert_type(await client.inspect("k"), leasehold.LockInfo | None)
    async for leader in client.election("k").observe():
        assert_type(leader, leasehold.Leader | None)
    await testing.lose_async(client, guard)
