"""`manage.py worker`: runs turns, jobs and deliveries until it is told to stop."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from ochat_site.worker import Worker
from sessions_app import marker, store


class Command(BaseCommand):
    """Start one worker process."""

    help = "Run turns, jobs and deliveries until SIGTERM or SIGINT."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the store, then work. Refuses a store of another version with MigrationRequired or StoreSchemaTooNew, folders of
        another store with ConfigurationInvalid.
        """
        store.check()
        marker.check(settings.ENV.data_dir)
        Worker().run()
