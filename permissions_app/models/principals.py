"""Principals, their tokens, and with whom sessions are shared (behaviour 2)."""

from __future__ import annotations

from typing import get_args

from django.conf import settings
from django.db import models
from django.db.models import Q
from guardian.models import GroupObjectPermissionBase, UserObjectPermissionBase

from permissions_app.models.fields import WordsField
from sessions_app.models import Session
from sessions_app.models.fields import IdField
from sessions_app.records import Scope

SCOPES: tuple[Scope, ...] = get_args(Scope)
"""All scopes, in the order in which they are written; each is a Django permission of `Principal`."""


class Principal(models.Model):
    """Who acts: a Django user, or a service that only has tokens."""

    id = IdField(primary_key=True)
    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="principal"
    )
    """Null for a service. A user that is removed takes its tokens along, so that none outlives the rights
    behind it.
    """
    name = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)
        permissions = [(scope, f"Scope {scope}") for scope in SCOPES]
        constraints = [
            models.UniqueConstraint(
                fields=["name"], condition=Q(user=None) & ~Q(name=""), name="principal_service_named_once"
            ),
        ]

    def __str__(self) -> str:
        return self.name or self.id


class Token(models.Model):
    """A bearer token, known by its digest alone; no row is ever removed but with its principal."""

    id = IdField(primary_key=True)
    principal = models.ForeignKey(Principal, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=200, blank=True)
    sha256 = models.CharField(max_length=64, unique=True)
    """Lower-case hex of the token's SHA-256: unique, so that the first match is the only one (behaviour
    2.3).
    """
    scopes = WordsField(blank=True)
    attributes = models.JSONField(default=dict, blank=True)
    """Name → value, shown in the `Principal` of whoever uses the token."""
    source = models.CharField(
        max_length=8, choices=[("file", "catalog file"), ("command", "command line"), ("admin", "admin")]
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ("add", "change", "view")

    def __str__(self) -> str:
        return self.name or self.id


class SessionUserShare(UserObjectPermissionBase):
    """A session shared with a user; `permission` is read, write or own, each of which holds those before
    it.
    """

    content_object = models.ForeignKey(
        Session, on_delete=models.CASCADE, related_name="user_shares", db_index=False
    )

    class Meta(UserObjectPermissionBase.Meta):
        default_permissions = ()
        indexes = [models.Index(fields=["content_object", "user", "permission"], name="user_share_lookup")]


class SessionGroupShare(GroupObjectPermissionBase):
    """A session shared with everybody in a group."""

    content_object = models.ForeignKey(
        Session, on_delete=models.CASCADE, related_name="group_shares", db_index=False
    )

    class Meta(GroupObjectPermissionBase.Meta):
        default_permissions = ()
        indexes = [models.Index(fields=["content_object", "group", "permission"], name="group_share_lookup")]
