"""Tasks under a lock, with a client that is made before Celery's workers are forked."""

import os
import time
from pathlib import Path

from celery import Celery

import leasehold

app = Celery("tasks", broker=os.environ["STORE"], backend=os.environ["STORE"])
app.conf.broker_connection_retry_on_startup = True
app.conf.task_default_queue = os.environ["KEY"]
client = leasehold.Client(os.environ["STORE"])


@app.task
def add() -> int:
    number = Path(os.environ["NUMBER"])
    with client.mutex(os.environ["KEY"]).lock(timeout=60):
        before = int(number.read_text())
        time.sleep(0.01)
        number.write_text(str(before + 1))
    return before + 1
