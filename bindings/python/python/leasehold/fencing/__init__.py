"""The resource's half of fencing: it refuses a holder whose lease has ended.

A resource keeps the highest fence it has seen. Each transaction first shows its own fence, by a
statement of `leasehold.fencing.postgresql`, and `passed` judges the answer.
"""

__all__ = ["Stale", "passed"]


class Stale(Exception):
    """The resource has seen a higher fence: a later holder was there. Roll back."""

    def __init__(self, fence: int) -> None:
        super().__init__(fence)
        self.fence = fence

    def __str__(self) -> str:
        return f"fence {self.fence} is stale: a later holder of the lock was here"


def passed(rows: int, fence: int) -> None:
    """Raises Stale unless the touch changed its row. `rows` is the cursor's `rowcount`."""
    if rows != 1:
        raise Stale(fence)
