"""Every kind of lock, on every store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from conftest import until

import leasehold


def refused(call: Callable[[], Any]) -> leasehold.Timeout:
    """A try without a wait that does not get the lock."""
    with pytest.raises(leasehold.Timeout) as caught:
        call()
    return caught.value


def test_a_mutex_is_held_by_one(client: leasehold.Client, key: str) -> None:
    mutex = client.mutex(key)
    assert mutex.key == key
    with mutex.lock() as guard:
        assert guard.is_held and guard.key == key and guard.permits is None
        assert 0 < guard.remaining <= 30
        assert guard.is_held_by_store()
        guard.check()
        assert mutex.try_lock() is None
        error = refused(lambda: mutex.lock(timeout=0))
        assert error.holder and error.holder.fence == guard.fence and error.key == key
    assert not guard.is_held
    other = mutex.try_lock()
    assert other
    other.release()


def test_fences_grow(client: leasehold.Client, key: str) -> None:
    fences = []
    for _ in range(5):
        with client.mutex(key).lock() as guard:
            fences.append(guard.fence)
    assert fences == sorted(set(fences)) and all(0 < fence < 2**63 for fence in fences)


def test_a_waiter_gets_the_lock_on_release(client: leasehold.Client, key: str) -> None:
    held = client.mutex(key).lock()
    fences: list[int] = []

    def wait() -> None:
        with client.mutex(key).lock(timeout=timedelta(seconds=30)) as guard:
            fences.append(guard.fence)

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: client.inspect(key).waiters)  # type: ignore[union-attr]
    first = held.fence
    held.release()
    waiter.join()
    assert fences[0] > first


def test_a_wait_times_out(client: leasehold.Client, key: str) -> None:
    with client.mutex(key).lock():
        error = refused(lambda: client.mutex(key).lock(timeout=0.05))
        assert isinstance(error, TimeoutError) and error.kind == "timeout"


def test_relock_renews_or_takes_again(client: leasehold.Client, key: str) -> None:
    mutex = client.mutex(key, ttl=60)
    guard = mutex.lock()
    renewed = mutex.relock(guard)
    assert renewed and renewed.fence == guard.fence_even_if_lost
    with pytest.raises(leasehold.Misuse):
        guard.release()
    assert client.force_release(key, renewed.fence) == "released"
    again = mutex.relock(renewed)
    assert again and again.fence > renewed.fence_even_if_lost
    assert client.force_release(key, again.fence) == "released"
    with client.mutex(key).lock():
        assert mutex.relock(again) is None


def test_the_holder_is_asked(client: leasehold.Client, key: str) -> None:
    mutex = client.mutex(key)
    assert not mutex.ask()
    with mutex.lock() as guard:
        assert not guard.is_asked and not guard.asked(timeout=0)
        assert mutex.ask()
        assert guard.asked(timeout=30) and guard.is_asked


def test_readers_share_and_a_writer_is_alone(client: leasehold.Client, key: str) -> None:
    lock = client.rwlock(key)
    with lock.read() as one, lock.read() as two:
        assert one.is_held and two.is_held
        assert lock.try_write() is None
        refused(lambda: lock.write(timeout=0))
    with lock.write() as writer:
        assert writer.is_held and lock.try_read() is None
        refused(lambda: lock.read(timeout=0))
    reader = lock.try_read()
    assert reader
    reader.release()


def test_a_reader_becomes_a_writer_and_back(client: leasehold.Client, key: str) -> None:
    lock = client.rwlock(key)
    writer = lock.read().upgrade()
    assert writer.is_held and lock.try_read() is None
    reader = writer.downgrade()
    other = lock.try_read()
    assert reader.is_held and other
    with pytest.raises(leasehold.Conflict):
        reader.upgrade()
    assert reader.is_held
    other.release()
    reader.release()


def test_a_semaphore_has_as_many_permits(client: leasehold.Client, key: str) -> None:
    permits = client.semaphore(key, 3)
    assert (permits.key, permits.limit, permits.available()) == (key, 3, 3)
    with permits.acquire(2) as two, permits.acquire() as one:
        assert (two.permits, one.permits, permits.available()) == (2, 1, 0)
        assert permits.try_acquire() is None
        refused(lambda: permits.acquire(timeout=0))
    with permits.acquire(3).release_permits(2) as one:
        assert (one.permits, permits.available()) == (1, 2)
    larger = permits.set_limit(4)
    assert larger.limit == 4 and larger.available() == 4
    with larger.acquire():
        with pytest.raises(leasehold.Conflict):
            permits.acquire(timeout=0)
        with client.semaphore(key, 3, stored_limit=True).acquire(3):
            assert larger.available() == 0


def test_several_locks_are_taken_together(client: leasehold.Client, key: str) -> None:
    keys = [f"{key}/b", f"{key}/a"]
    multi = client.multi(keys)
    assert sorted(multi.keys) == sorted(keys)
    with multi.lock() as guard:
        assert sorted(guard.fences) == sorted(keys) and guard.is_held
        with pytest.raises(leasehold.Misuse):
            print(guard.fence)
        assert client.multi(reversed(keys)).try_lock() is None
        assert client.mutex(keys[0]).try_lock() is None
    with client.mutex(keys[0]).lock():
        assert multi.try_lock() is None
        refused(lambda: multi.lock(timeout=0))
        free = client.mutex(keys[1]).try_lock()
        assert free
        free.release()


def test_an_owner_takes_its_lock_again(client: leasehold.Client, key: str) -> None:
    owner = leasehold.Owner()
    lock = client.reentrant(key, owner)
    with lock.lock() as outer, client.reentrant(key, owner).lock() as inner:
        assert inner.holds == 2 and inner.fence == outer.fence
        assert client.reentrant(key, leasehold.Owner()).try_lock() is None
    other = client.reentrant(key, leasehold.Owner()).try_lock()
    assert other
    other.release()


def test_a_job_starts_once_in_its_period(client: leasehold.Client, key: str) -> None:
    job = client.once_per(key, timedelta(hours=1))
    guard = job.start()
    assert guard and guard.is_held
    guard.reopen()
    with job.start() as guard:  # type: ignore[union-attr]
        assert guard.is_held
    assert job.start() is None
    ran = []

    @client.once_per(f"{key}/decorated", 3600).once
    def report(text: str) -> str:
        ran.append(text)
        return text

    assert report("first") == "first"
    assert report("second") is None
    assert ran == ["first"]


def test_one_leads_and_all_see_it(client: leasehold.Client, key: str) -> None:
    election = client.election(key, owner="ann", metadata="10.0.0.7")
    assert election.leader() is None
    with election.campaign() as lead:
        leader = election.leader()
        assert leader == (leasehold.Leader("ann", "10.0.0.7", lead.fence))
        assert client.election(key, owner="ben").try_campaign() is None
        assert next(iter(election.observe())) == leader
    assert election.leader() is None


def test_the_decorator_has_the_calls_words_in_its_name(client: leasehold.Client, key: str) -> None:
    @client.locked(key + "-{account}", timeout=0)
    def sync(account: int, lease: leasehold.Guard | None = None) -> str:
        """What it does."""
        assert lease and lease.is_held
        return lease.key

    assert sync(7) == f"{key}-7" and sync(account=8) == f"{key}-8"
    assert (sync.__name__, sync.__doc__) == ("sync", "What it does.")
    with client.mutex(f"{key}-7").lock():
        refused(lambda: sync(7))
        assert sync(8)


def test_a_mutex_decorates(client: leasehold.Client, key: str) -> None:
    mutex = client.mutex(key)

    @mutex.locked
    def work(n: int) -> int:
        assert mutex.try_lock() is None
        return n + 1

    assert work(1) == 2


def test_kinds_under_one_name_conflict(client: leasehold.Client, key: str) -> None:
    with client.mutex(key).lock(), pytest.raises(leasehold.Conflict) as caught:
        client.semaphore(key, 2).acquire(timeout=0)
    assert caught.value.kind == "conflict"


def test_eight_threads_take_turns(client: leasehold.Client, key: str) -> None:
    mutex = client.mutex(key)
    state = {"inside": 0, "most": 0, "turns": 0}

    def work() -> None:
        for _ in range(25):
            with mutex.lock(timeout=60):
                state["inside"] += 1
                state["most"] = max(state["most"], state["inside"])
                state["turns"] += 1
                state["inside"] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state == {"inside": 0, "most": 1, "turns": 200}


def test_a_storm_of_timeouts_leaves_nothing(client: leasehold.Client, key: str) -> None:
    """Waits that end at any moment, also while a grant is on its way."""
    state = {"inside": 0, "most": 0}
    outcomes: list[str] = []

    def work(n: int) -> None:
        for turn in range(25):
            try:
                with client.mutex(key).lock(timeout=(n * turn % 7) / 1000):
                    state["inside"] += 1
                    state["most"] = max(state["most"], state["inside"])
                    time.sleep(0.0005)
                    state["inside"] -= 1
                    outcomes.append("held")
            except leasehold.Timeout:
                outcomes.append("timed out")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 200 and set(outcomes) == {"held", "timed out"}
    assert state == {"inside": 0, "most": 1}
    client.mutex(key).lock(timeout=30).release()
    assert not client.list(key)
