"""A service that a server preloads: the client is made, and a lock taken, before it forks."""

import os
import time
from pathlib import Path

import leasehold

client = leasehold.Client(os.environ["STORE"], retry_store=60)
mutex = client.mutex(os.environ["KEY"])
# Where each worker loads this for itself, one of them gets it.
masters = client.mutex(os.environ["KEY"] + "/master", ttl=5).try_lock()
number = Path(os.environ["NUMBER"])


def add() -> str:
    with mutex.lock(timeout=60):
        before = int(number.read_text())
        time.sleep(0.001)
        number.write_text(str(before + 1))
    return str(before + 1)


def master() -> str:
    try:
        guard = f"guard {masters.fence}" if masters else "no guard"
    except leasehold.Misuse:
        guard = "guard refused"
    free = client.mutex(os.environ["KEY"] + "/master").try_lock()
    return f"{guard}, lock {'free' if free else 'held'}"


def app(environ, start_response):
    text = {"/add": add, "/master": master}[environ["PATH_INFO"]]()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [text.encode()]
