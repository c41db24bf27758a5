"""Registers the app with Django; it starts nothing."""

from django.apps import AppConfig


class SessionsConfig(AppConfig):
    """`sessions_app`; the label is the package name."""

    name = "sessions_app"
    label = "sessions_app"
    verbose_name = "Sessions"
    default_auto_field = "django.db.models.BigAutoField"
