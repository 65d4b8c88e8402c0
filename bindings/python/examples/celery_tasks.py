"""Celery: one task at a time for each account. A task that finds its lock held comes back later.

    celery -A celery_tasks worker --pool prefork

The client is made once, before Celery forks its workers. Each worker makes its own connection.
"""

import os

import leasehold
from celery import Celery, Task

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
locks = leasehold.Client()  # the store of LEASEHOLD_STORE


@locks.locked("sync-{account}", timeout=0)
def sync_with_bank(account: int, lease: leasehold.Guard) -> str:
    return f"account {account} under fence {lease.fence}"


@app.task(bind=True, max_retries=None)
def sync(self: Task, account: int) -> str:
    try:
        return sync_with_bank(account)
    except leasehold.Timeout as busy:
        raise self.retry(exc=busy, countdown=min(busy.retry_after or 1, 10)) from busy


@app.task
def heartbeat() -> None:
    """What the beat sends."""


app.conf.beat_schedule = {"heartbeat": {"task": "celery_tasks.heartbeat", "schedule": 1.0}}
app.conf.broker_connection_retry_on_startup = True
