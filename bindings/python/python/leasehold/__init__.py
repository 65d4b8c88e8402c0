"""Locks for the processes of one machine or of many: the lock you can prove you hold."""

import atexit as _atexit
import sys as _sys

from . import _decorators, _leasehold
from ._calls import log_to
from ._errors import (
    Closed,
    Config,
    Conflict,
    Corrupt,
    Denied,
    Error,
    Foreign,
    Full,
    Late,
    Lost,
    Misuse,
    NotReplicated,
    Protocol,
    Timeout,
    Unavailable,
    Unsupported,
)
from ._leasehold import (
    Client,
    Election,
    Guard,
    Lease,
    Multi,
    MultiGuard,
    Mutex,
    OnceGuard,
    OncePer,
    Owner,
    ReadGuard,
    Reentrant,
    ReentrantGuard,
    RwLock,
    Semaphore,
    SemaphoreGuard,
    WriteGuard,
    __version__,
)

# Made when they are first needed: most programs only lock.
_VALUES = frozenset(
    ("Finding", "Holder", "Leader", "Listing", "LockEvent", "LockInfo", "Waiter")
)

__all__ = [
    "Client",
    "Closed",
    "Config",
    "Conflict",
    "Corrupt",
    "Denied",
    "Election",
    "Error",
    "Finding",
    "Foreign",
    "Full",
    "Guard",
    "Holder",
    "Late",
    "Leader",
    "Lease",
    "Listing",
    "LockEvent",
    "LockInfo",
    "Lost",
    "Misuse",
    "Multi",
    "MultiGuard",
    "Mutex",
    "NotReplicated",
    "OnceGuard",
    "OncePer",
    "Owner",
    "Protocol",
    "ReadGuard",
    "Reentrant",
    "ReentrantGuard",
    "RwLock",
    "Semaphore",
    "SemaphoreGuard",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "Waiter",
    "WriteGuard",
    "__version__",
    "log_to",
]


def __getattr__(name):
    if name in _VALUES:
        from . import _types

        return getattr(_types, name)
    raise AttributeError(f"module 'leasehold' has no attribute {name!r}")


_leasehold.AnyClient.locked = _decorators.locked
for _mutex in (_leasehold.Mutex, _leasehold.AMutex):
    _mutex.locked = _decorators.locked_by_mutex
for _job in (_leasehold.OncePer, _leasehold.AOncePer):
    _job.once = _decorators.once

# After the threads of the program have ended, and before those that are daemons are stopped.
_atexit.register(_leasehold.end)

_monkey = _sys.modules.get("gevent.monkey")
if _monkey is not None and _monkey.is_module_patched("threading"):
    import warnings as _warnings

    _warnings.warn(
        "a wait for a lock blocks gevent's hub; wait in gevent.get_hub().threadpool",
        RuntimeWarning,
        stacklevel=2,
    )
