"""Locks for tests: the real ones, in memory, a way to lose them, and a clock to move.

As a pytest plugin it has the fixtures `leasehold_client`, a client of a store in memory,
`leasehold_clock`, a clock on which that client counts, and `leasehold_store`, the URL of a store
that the test's processes share.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import leasehold
from leasehold._leasehold import FakeClock

if TYPE_CHECKING:
    from leasehold import aio

__all__ = ["FakeClock", "lose", "lose_async", "memory_client"]


def memory_client(clock: FakeClock | None = None) -> leasehold.Client:
    """A client with a store of its own, which needs no server and ends with it."""
    return leasehold.Client("memory:", clock=clock)


def lose(client: leasehold.Client, guard: leasehold.Guard) -> None:
    """Ends the lease as an operator would, and returns when its holder has noticed the loss.

    `lost()` returns, `on_lost` calls, `fence` raises `Lost`, and the body of an `async with` is
    cancelled, all as in production. Another holder can have the lock from then on.
    """
    client.force_release(guard.key, guard.fence_even_if_lost)
    with contextlib.suppress(leasehold.Lost):
        guard.renew_to(1)


async def lose_async(client: aio.Client, guard: aio.Guard) -> None:
    """As `lose`, for `leasehold.aio`."""
    await client.force_release(guard.key, guard.fence_even_if_lost)
    with contextlib.suppress(leasehold.Lost):
        await guard.renew_to(1)
