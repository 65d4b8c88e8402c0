"""Locks for tests: the real ones, in memory, and a way to lose them.

As a pytest plugin it has the fixtures `leasehold_client`, a client of a store in memory, and
`leasehold_store`, the URL of a store that the test's processes share.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import leasehold

if TYPE_CHECKING:
    from leasehold import aio

__all__ = ["lose", "lose_async", "memory_client"]


def memory_client() -> leasehold.Client:
    """A client with a store of its own, which needs no server and ends with it."""
    return leasehold.Client("memory:")


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
