"""leasehold for asyncio: the same names, and what waits is awaited.

One client serves any number of event loops and threads. Every await may be cancelled: a position
in a queue is given up, and a grant that was on its way is released.
"""

from . import Lost, Owner, Timeout, _leasehold
from ._errors import Error
from ._leasehold import AClient as Client
from ._leasehold import AElection as Election
from ._leasehold import AGuard as Guard
from ._leasehold import AMulti as Multi
from ._leasehold import AMultiGuard as MultiGuard
from ._leasehold import AMutex as Mutex
from ._leasehold import AOnceGuard as OnceGuard
from ._leasehold import AOncePer as OncePer
from ._leasehold import AReadGuard as ReadGuard
from ._leasehold import AReentrant as Reentrant
from ._leasehold import AReentrantGuard as ReentrantGuard
from ._leasehold import ARwLock as RwLock
from ._leasehold import ASemaphore as Semaphore
from ._leasehold import ASemaphoreGuard as SemaphoreGuard
from ._leasehold import AWriteGuard as WriteGuard
from ._leasehold import Acquiring, Lease

__all__ = [
    "Acquiring",
    "Client",
    "Election",
    "Guard",
    "Lease",
    "Multi",
    "MultiGuard",
    "Mutex",
    "OnceGuard",
    "OncePer",
    "Owner",
    "ReadGuard",
    "Reentrant",
    "ReentrantGuard",
    "RwLock",
    "Semaphore",
    "SemaphoreGuard",
    "WriteGuard",
]


async def _run(self, body, stop=None):
    """Campaigns, runs the body while it leads, and campaigns again after a loss.

    Returns what the body returns, or None once the event `stop` is set. A body is cancelled when
    the leadership is lost, before another candidate can lead.
    """
    import asyncio

    leads = asyncio.ensure_future(_lead(self, body))
    stops = None if stop is None else asyncio.ensure_future(stop.wait())
    both = {leads} if stops is None else {leads, stops}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return leads.result() if leads.done() else None
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _lead(election, body):
    import asyncio

    while True:
        try:
            guard = await election.campaign()
        except Error as error:
            if not error.is_retryable or isinstance(error, Timeout):
                raise
            await asyncio.sleep(election._pause)
            continue
        is_done, result = False, None
        try:
            async with guard:
                result = await body(guard)
                is_done = True
        except Error as error:
            # What the body did is done, even if the resignation fails.
            if not is_done:
                if isinstance(error, Lost) and not guard.is_held:
                    continue
                raise
        return result


_leasehold.AElection.run = _run
