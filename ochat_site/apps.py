"""Registers the top layer with Django and puts the parts together."""

from django.apps import AppConfig


class SiteConfig(AppConfig):
    """`ochat_site`; the label is the package name."""

    name = "ochat_site"
    label = "ochat_site"
    verbose_name = "Ochat"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Install the kernel's ports, once every app's models are there."""
        from jobs_app.dispatch import CeleryDispatcher  # models must be loaded before these
        from ochat_site import celery, wiring

        celery.app.finalize()
        wiring.install(CeleryDispatcher())
