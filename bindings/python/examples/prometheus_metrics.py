"""Prometheus: counts what happens to this process's leases, and how many locks are in use."""

import threading
from collections.abc import Iterable, Iterator

import leasehold
from prometheus_client import REGISTRY, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

EVENTS = Counter("leasehold_events", "What happened to leases, by event.", ["event"])


class Locks(Collector):
    """Looks at the store at each scrape. No metric has a lock's name: there may be too many."""

    def __init__(self, client: leasehold.Client, prefix: str = "") -> None:
        self.client, self.prefix = client, prefix

    def collect(self) -> Iterator[GaugeMetricFamily]:
        locks = self.client.list(self.prefix)
        held = sum(1 for lock in locks if lock.holders)
        waiting = sum(len(lock.waiters) for lock in locks)
        yield GaugeMetricFamily("leasehold_locks_held", "Locks with a holder.", held)
        yield GaugeMetricFamily("leasehold_waiters", "Waiters in all queues.", waiting)


def count(events: Iterable[leasehold.LockEvent]) -> None:
    """Counts until the client is closed."""
    for event in events:
        EVENTS.labels(event.what).inc()


def export(client: leasehold.Client) -> None:
    REGISTRY.register(Locks(client))
    threading.Thread(target=count, args=(client.events(),), daemon=True).start()


if __name__ == "__main__":
    from prometheus_client import start_http_server

    client = leasehold.Client()
    export(client)
    start_http_server(9400, addr="127.0.0.1")
    threading.Event().wait()
