"""What a guard tells and does, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import pytest
from conftest import until

import leasehold
from leasehold import aio, testing


def taken_away(client: leasehold.Client, guard: leasehold.Guard) -> None:
    """Ends a lease as an operator does, and has its holder notice."""
    assert client.force_release(guard.key, guard.fence_even_if_lost) == "released"
    assert not guard.is_held_by_store()
    with pytest.raises(leasehold.Lost):
        guard.renew_to(30)


def test_a_loss_is_told(client: leasehold.Client, key: str) -> None:
    guard = client.mutex(key).lock()
    calls: list[str] = []
    guard.on_lost(lambda: calls.append(threading.current_thread().name))
    assert not guard.lost(timeout=0)
    fence = guard.fence
    taken_away(client, guard)
    assert guard.lost(timeout=30) and guard.lost() and not guard.is_held
    assert (guard.remaining, guard.fence_even_if_lost) == (0, fence)
    for look in (lambda: guard.fence, guard.check):
        with pytest.raises(leasehold.Lost) as caught:
            look()
        assert caught.value.kind == "lost" and caught.value.key == key
    until(lambda: calls)
    assert calls == ["leasehold-calls"]
    with pytest.raises(leasehold.Lost):
        guard.release()


def test_a_loss_is_told_to_a_waiting_thread(client: leasehold.Client, key: str) -> None:
    guard = client.mutex(key).lock()
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(guard.lost()))
    waiter.start()
    taken_away(client, guard)
    waiter.join()
    assert answers == [True]
    with pytest.raises(leasehold.Lost):
        guard.release()


def test_a_loss_comes_out_of_with(client: leasehold.Client, key: str) -> None:
    with pytest.raises(leasehold.Lost), client.mutex(key).lock() as guard:
        taken_away(client, guard)


def test_what_the_body_raises_has_a_note_of_the_loss(client: leasehold.Client, key: str) -> None:
    with pytest.raises(KeyError) as caught, client.mutex(key).lock() as guard:
        taken_away(client, guard)
        raise KeyError("of the body")
    assert any("lost" in note for note in caught.value.__notes__)


def test_a_lease_that_nobody_took_is_late(client: leasehold.Client, key: str) -> None:
    guard = client.mutex(key, ttl=0.2, renew=False).lock()
    assert guard.lost(timeout=30)
    # The loss is reported before the lease has ended in the store.
    until(lambda: not client.list(key))
    with pytest.raises(leasehold.Late) as caught:
        guard.release()
    assert isinstance(caught.value, leasehold.Lost) and caught.value.kind == "late"


def test_a_release_is_for_once(client: leasehold.Client, key: str) -> None:
    guard = client.mutex(key).lock()
    guard.release()
    with pytest.raises(leasehold.Misuse) as caught:
        guard.release()
    assert isinstance(caught.value, RuntimeError)


def test_a_release_inside_with_is_enough(client: leasehold.Client, key: str) -> None:
    with client.mutex(key).lock() as guard:
        guard.release()
        other = client.mutex(key).try_lock()
        assert other
        other.release()


def test_a_cooldown_keeps_the_lock_closed(client: leasehold.Client, key: str) -> None:
    client.mutex(key).lock().release(cooldown=60)
    assert client.mutex(key).try_lock() is None
    info = client.inspect(key)
    assert info and info.closed_for and 0 < info.closed_for <= 60


def test_a_lease_gets_another_length(client: leasehold.Client, key: str) -> None:
    with client.mutex(key, ttl=30).lock() as guard:
        guard.renew_to(300)
        assert guard.remaining > 100 and guard.until_deadline >= guard.remaining


def test_a_detached_lease_is_adopted(client: leasehold.Client, key: str) -> None:
    guard = client.mutex(key, ttl=60).lock()
    fence = guard.fence
    secret = guard.detach()
    assert not guard.is_held
    adopted = client.adopt(secret)
    assert adopted.is_held and adopted.fence == fence
    adopted.release()


def test_a_forgotten_guard_is_given_up_with_a_warning(client: leasehold.Client, key: str) -> None:
    guard = client.mutex(key).lock()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del guard
        gc.collect()
    assert [one.category for one in caught] == [ResourceWarning] and key in str(caught[0].message)
    client.mutex(key).lock(timeout=30).release()


def test_a_guard_works_in_any_thread(client: leasehold.Client, key: str) -> None:
    guard = client.mutex(key).lock()
    thread = threading.Thread(target=guard.release)
    thread.start()
    thread.join()
    client.mutex(key).lock(timeout=0).release()


def test_progress_and_a_result_are_noted(client: leasehold.Client, key: str) -> None:
    with client.mutex(key, progress_within=30).lock() as guard:
        guard.progress()
        guard.note_result("42 orders")
        assert not guard.is_at_risk


def test_no_body_runs_without_the_lock(client: leasehold.Client, key: str) -> None:
    guard = client.mutex(key).lock()
    guard.release()
    with pytest.raises(leasehold.Misuse), guard:
        pytest.fail("the body runs")
    with client.mutex(key).lock() as guard:
        with pytest.raises(leasehold.Misuse), guard:
            pytest.fail("the body runs")
        assert guard.is_held
    testing.lose(client, lost := client.mutex(key).lock())
    with pytest.raises(leasehold.Lost), lost:
        pytest.fail("the body runs")
    client.mutex(key).lock(timeout=60).release()


def test_no_body_of_a_task_runs_without_the_lock(url: str, key: str) -> None:
    async def main() -> None:
        async with aio.Client(url) as client:
            guard = await client.mutex(key).lock()
            await guard.release()
            with pytest.raises(leasehold.Misuse):
                async with guard:
                    pytest.fail("the body runs")
            async with client.mutex(key).lock() as guard:
                with pytest.raises(leasehold.Misuse):
                    async with guard:
                        pytest.fail("the body runs")
                assert guard.is_held
            await testing.lose_async(client, lost := await client.mutex(key).lock())
            with pytest.raises(leasehold.Lost):
                async with lost:
                    pytest.fail("the body runs")
            await (await client.mutex(key).lock(timeout=60)).release()

    asyncio.run(main())
