"""APScheduler: every process has the scheduler, and the leader's alone is running."""

import sys
import time

import leasehold
from apscheduler.schedulers.background import BackgroundScheduler


def report() -> None:
    print("report", flush=True)


def lead(client: leasehold.Client) -> None:
    """Runs the schedule while this process leads."""
    with client.election("scheduler").campaign() as leadership:
        print(f"leads with fence {leadership.fence}", flush=True)
        scheduler = BackgroundScheduler()
        scheduler.add_job(report, "interval", seconds=1)
        scheduler.start()
        try:
            leadership.lost()
        finally:
            # Jobs that have begun check the lease, or finish after the loss.
            scheduler.shutdown(wait=False)


if __name__ == "__main__":
    with leasehold.Client() as client:
        while True:
            try:
                lead(client)
            except leasehold.Lost as lost:
                print(f"leads no more: {lost}", file=sys.stderr)
                time.sleep(1)
