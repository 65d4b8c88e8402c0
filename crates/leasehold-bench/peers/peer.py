"""Locks with redis-py and python-redis-lock, to be measured.

peer.py PORT LIBRARY PAUSE_MS cycle|handoff CONTENDERS SECONDS

PAUSE_MS is how long one that waits sleeps before it asks again; 0 is the library's own choice.
cycle: each contender takes and releases a lock of its own. handoff: all want one lock, and only
those times count at which another one than before has it. Prints one line of JSON.
"""

import json
import sys
import threading
import time

import redis
import redis_lock

port, library, pause_ms, what, contenders, seconds = sys.argv[1:]
port, pause, contenders, seconds = int(port), int(pause_ms) / 1000, int(contenders), float(seconds)


def lock_of(client, key):
    if library == "python-redis-lock":
        return redis_lock.Lock(client, key, expire=30)
    options = {"sleep": pause} if pause else {}
    return client.lock(key, timeout=30, thread_local=False, **options)


until, count, last, guard = None, 0, None, threading.Lock()
ready = threading.Barrier(contenders + 1)


def contend(number):
    global count, last
    client = redis.Redis(port=port)
    lock = lock_of(client, "peer" if what == "handoff" else f"peer/{number}")
    client.ping()
    ready.wait()
    own = 0
    while time.monotonic() < until:
        lock.acquire()
        if what == "cycle":
            own += 1
        elif last != number:
            last, own = number, own + 1
        lock.release()
    with guard:
        count += own


threads = [threading.Thread(target=contend, args=(number,)) for number in range(contenders)]
for thread in threads:
    thread.start()
while ready.n_waiting < contenders:
    time.sleep(0.001)
began, cpu = time.monotonic(), time.process_time()
until = began + seconds
ready.wait()
for thread in threads:
    thread.join()
took = time.monotonic() - began
print(json.dumps({"count": count, "seconds": took, "cpu_us": (time.process_time() - cpu) * 1e6}))
