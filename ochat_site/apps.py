"""Registers the top layer with Django."""

from django.apps import AppConfig


class SiteConfig(AppConfig):
    """`ochat_site`; the label is the package name."""

    name = "ochat_site"
    label = "ochat_site"
    verbose_name = "Ochat"
    default_auto_field = "django.db.models.BigAutoField"
