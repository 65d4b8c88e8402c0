"""The extension module; its public names are in `leasehold` and `leasehold.aio`."""

from datetime import timedelta
from typing import Any, Self, final

__all__ = [
    "AClient",
    "AElection",
    "AGuard",
    "AMulti",
    "AMultiGuard",
    "AMutex",
    "AOnceGuard",
    "AOncePer",
    "AReadGuard",
    "AReentrant",
    "AReentrantGuard",
    "ARwLock",
    "ASemaphore",
    "ASemaphoreGuard",
    "AWatching",
    "AWriteGuard",
    "Acquiring",
    "AnyClient",
    "Client",
    "Election",
    "FakeClock",
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
    "Waiting",
    "Watching",
    "WriteGuard",
    "__version__",
    "end",
    "log_from",
    "next_call",
    "take_calls",
]

@final
class FakeClock:
    """A clock for tests, which stands still until it is moved.

    A client with the setting `clock` counts all times on it: leases, waits and their timeouts.
    """

    def __new__(cls) -> Self: ...
    def advance(self, by: float | timedelta) -> None:
        """Moves it at once, and returns when what is due then was done.

        A lease that ends within the step is lost, as when a machine was suspended. Steps of less
        than a third of the ttl have it renewed.
        """

AClient: Any
AElection: Any
AGuard: Any
AMulti: Any
AMultiGuard: Any
AMutex: Any
AOnceGuard: Any
AOncePer: Any
AReadGuard: Any
AReentrant: Any
AReentrantGuard: Any
ARwLock: Any
ASemaphore: Any
ASemaphoreGuard: Any
AWatching: Any
AWriteGuard: Any
Acquiring: Any
AnyClient: Any
Client: Any
Election: Any
Guard: Any
Lease: Any
Multi: Any
MultiGuard: Any
Mutex: Any
OnceGuard: Any
OncePer: Any
Owner: Any
ReadGuard: Any
Reentrant: Any
ReentrantGuard: Any
RwLock: Any
Semaphore: Any
SemaphoreGuard: Any
Waiting: Any
Watching: Any
WriteGuard: Any
__version__: str
end: Any
log_from: Any
next_call: Any
take_calls: Any
