"""Registers the app with Django; it starts nothing."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """`jobs_app`; the label is the package name."""

    name = "jobs_app"
    label = "jobs_app"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"
