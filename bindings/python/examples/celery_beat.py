"""Celery: one beat of many. Start this on every host in place of `celery beat`.

The others wait in the queue. When the leader's host dies, the next one starts its beat.
"""

import subprocess
import sys

import leasehold

BEAT = [sys.executable, "-m", "celery", "-A", "celery_tasks", "beat", *sys.argv[1:]]


def main() -> int:
    with leasehold.Client() as client, client.election("celery/beat").campaign() as lead:
        print(f"leads with fence {lead.fence}", flush=True)
        beat = subprocess.Popen(BEAT)
        try:
            while beat.poll() is None:
                if lead.lost(timeout=0.5):
                    break
        finally:
            beat.terminate()
            beat.wait()
        return beat.returncode


if __name__ == "__main__":
    sys.exit(main())
