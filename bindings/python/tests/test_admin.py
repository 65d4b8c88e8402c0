"""Looking at locks, and intervening."""

from __future__ import annotations

import contextlib
import threading

import pytest
from conftest import until

import leasehold


def test_inspect_shows_holders_and_waiters(client: leasehold.Client, key: str) -> None:
    assert client.inspect(key) is None
    with client.mutex(key, owner="ann", metadata="job 7").lock() as guard:
        waiter = threading.Thread(
            target=lambda: client.mutex(key, owner="ben").lock(timeout=60).release()
        )
        waiter.start()
        info = until(lambda: (it := client.inspect(key)) and it.waiters and it)
        assert (info.key, info.kind) == (key, "lock") and info.last_fence >= guard.fence
        holder, waiting = info.holders[0], info.waiters[0]
        assert (holder.owner, holder.metadata, holder.fence) == ("ann", "job 7", guard.fence)
        assert holder.held_for >= 0 and 0 < holder.ends_in <= 30 and not holder.is_asked
        assert (waiting.owner, waiting.metadata) == ("ben", "") and waiting.waited_for >= 0
    waiter.join()


def test_list_has_the_locks_of_a_prefix(client: leasehold.Client, key: str) -> None:
    with client.mutex(f"{key}/a").lock(), client.semaphore(f"{key}/b", 2).acquire():
        found = {lock.key: lock.kind for lock in client.list(f"{key}/")}
        assert found == {f"{key}/a": "lock", f"{key}/b": "semaphore"}
        assert client.list(f"{key}/c") == []


def test_force_release_names_the_fence(client: leasehold.Client, key: str) -> None:
    assert client.force_release(key, 1) == "not_held"
    guard = client.mutex(key).lock()
    assert client.force_release(key, guard.fence + 1) == "other_fence"
    assert client.force_release(key, guard.fence) == "released"
    client.mutex(key).lock(timeout=0).release()
    with pytest.raises(leasehold.Lost):
        guard.release()


def test_ask_counts_the_holders(client: leasehold.Client, key: str) -> None:
    assert client.ask(key) == 0
    with client.rwlock(key).read() as one, client.rwlock(key).read() as two:
        assert client.ask(key) == 2
        assert one.asked(timeout=30) and two.asked(timeout=30)
    with client.mutex(key).lock() as guard:
        assert client.ask(key, fence=guard.fence) == 1


def test_release_all_ends_all_holds(client: leasehold.Client, key: str) -> None:
    guards = [client.mutex(f"{key}/{n}").lock() for n in range(3)]
    client.release_all()
    assert not any(guard.is_held for guard in guards) and client.list(key) == []


def test_events_are_those_of_this_client(memory: leasehold.Client, key: str) -> None:
    events = memory.events()
    with memory.mutex(key).lock() as guard:
        fence = guard.fence
    seen = [next(events), next(events)]
    assert all(event.key == key for event in seen) and fence in {event.fence for event in seen}
    assert len({event.what for event in seen}) == 2


def test_the_log_has_what_happened(key: str, redis_url: str) -> None:
    with leasehold.Client(redis_url, log=100) as client:
        with client.mutex(key, owner="ann").lock() as guard:
            guard.note_result("42 orders")
        # The log is written behind the calls.
        entries = until(lambda: len(it := client.log(key)) >= 2 and it)
        assert "42 orders" in str(entries) and "ann" in str(entries)
        assert len(client.log(key, last=1)) == 1


def test_examine_judges_the_store(client: leasehold.Client) -> None:
    findings = client.examine()
    assert all(it.severity in ("problem", "warning", "note", "fine") for it in findings)
    assert all(it.title and it.text is not None for it in findings)


def test_a_client_tells_who_and_where(client: leasehold.Client) -> None:
    assert client.owner and client.location
    assert client.location in repr(client) or client.owner in repr(client)


def test_logging_gets_what_is_traced(
    memory: leasehold.Client, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "leasehold")
    leasehold.log_to("leasehold")
    guard = memory.mutex(key, ttl=0.2, renew=False).lock()
    assert guard.lost(timeout=30)
    until(lambda: any(key in record.getMessage() for record in caplog.records))
    # In the store it may have been held to its end: a loss is reported before that.
    with contextlib.suppress(leasehold.Late):
        guard.release()


@pytest.mark.parametrize("layout", ["redis-py", "python-redis-lock"])
def test_another_librarys_locks_are_shared(redis_url: str, key: str, layout: str) -> None:
    import redis
    import redis_lock

    server = redis.Redis.from_url(redis_url, socket_timeout=None)
    with leasehold.Client(redis_url, interop=layout) as client:
        theirs = (
            server.lock(key, timeout=30)
            if layout == "redis-py"
            else redis_lock.Lock(server, key, expire=30)
        )
        with client.mutex(key).lock():
            assert not theirs.acquire(blocking=False)
        assert theirs.acquire(blocking=False)
        assert client.mutex(key).try_lock() is None
        theirs.release()
        client.mutex(key).lock(timeout=30).release()
