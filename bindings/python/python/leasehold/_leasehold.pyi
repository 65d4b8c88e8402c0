"""The extension module; its public names are in `leasehold` and `leasehold.aio`."""

from typing import Any

def __getattr__(name: str) -> Any: ...
