"""Django: migrations that each new container starts, one container at a time."""

from typing import Any

import leasehold
from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Runs migrate under a lock, and waits for its turn."

    def handle(self, *args: Any, **options: Any) -> None:
        with leasehold.Client() as client, client.mutex("shop/migrate").lock(timeout=600):
            call_command("migrate", verbosity=0)
            self.stdout.write("migrated")
