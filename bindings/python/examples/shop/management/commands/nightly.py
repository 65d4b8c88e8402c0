"""Django: a command that cron starts on every host, and that one of them runs."""

from typing import Any

import leasehold
from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = "Writes the nightly report."

    def handle(self, *args: Any, **options: Any) -> None:
        with leasehold.Client() as client:
            # Half of the schedule's period: a start that is a second late blocks none tomorrow.
            guard = client.once_per("shop/nightly", period=12 * 3600).start()
            if guard is None:
                self.stdout.write("another host has run it")
                return
            try:
                with guard:
                    self.report(guard)
            except leasehold.Lost as lost:
                raise CommandError(f"the report may have been written twice: {lost}") from lost

    def report(self, guard: leasehold.Guard) -> None:
        guard.check()  # before each side effect
        self.stdout.write(f"written under fence {guard.fence}")
