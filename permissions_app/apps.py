"""Registers the app with Django; it starts nothing."""

from django.apps import AppConfig


class PermissionsConfig(AppConfig):
    """`permissions_app`; the label is the package name."""

    name = "permissions_app"
    label = "permissions_app"
    verbose_name = "Permissions"
    default_auto_field = "django.db.models.BigAutoField"
