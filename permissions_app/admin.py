"""The stock admin over this app's tables: reading, and for tokens making and revoking (design 7).

Nothing is edited in place: a token is made and revoked by the functions of `tokens.py`, everything else is
shown only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.template.response import TemplateResponse

from permissions_app import tokens
from permissions_app.models import SCOPES, AuditRecord, DenyRule, Grant, PermissionRequest, Principal, Token
from permissions_app.scopes import operator
from sessions_app.admin import ReadOnlyAdmin
from sessions_app.errors import Refusal
from sessions_app.models import Session

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse


_PLAINTEXT = "ochat.issued_token"
"""Where the text of a new token waits, within its request, for the page that shows it."""


@admin.register(Principal)
class PrincipalAdmin(ReadOnlyAdmin):
    """Who acts here; the scopes of a user are permissions of its account."""

    list_display = ["id", "name", "user", "created_at"]
    search_fields = ["id", "name", "user__username"]
    ordering = ["-created_at"]


class TokenForm(forms.ModelForm[Token]):
    """What a person says of a new token."""

    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in SCOPES], widget=forms.CheckboxSelectMultiple, required=False
    )

    class Meta:
        model = Token
        fields = ["name", "principal", "scopes", "expires_at"]

    def clean(self) -> dict[str, Any]:
        """Show what `create_token` would refuse as an error of the form."""
        said = super().clean() or {}
        try:
            if not self.errors:
                tokens.check_token(said["principal"], said["scopes"], said["expires_at"])
        except Refusal as refusal:
            raise forms.ValidationError(refusal.message) from None
        return said


@admin.register(Token)
class TokenAdmin(admin.ModelAdmin[Token]):
    """Makes and revokes tokens; the text of a new one is on the page that follows, and nowhere afterwards."""

    form = TokenForm
    list_display = ["id", "name", "principal", "source", "created_at", "expires_at", "revoked_at"]
    list_filter = ["source"]
    search_fields = ["id", "name", "principal__id", "principal__name"]
    ordering = ["-created_at"]
    actions = ["revoke"]

    def has_change_permission(self, request: HttpRequest, obj: Token | None = None) -> bool:
        """A token never changes; only the list, with its action, is open to those who may revoke."""
        return obj is None and super().has_change_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Token | None = None) -> bool:
        """Revoked tokens stay on record."""
        return False

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:  # noqa: FBT001
        """Make the token of a valid form; `response_add` shows its text."""
        said = form.cleaned_data
        issued = tokens.create_token(
            operator(_person(request)),
            said["principal"],
            scopes=said["scopes"],
            source="admin",
            name=said["name"],
            expires_at=said["expires_at"],
        )
        obj.pk = issued.token.pk
        request.META[_PLAINTEXT] = issued.plaintext

    def response_add(
        self, request: HttpRequest, obj: Token, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the new token, once."""
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "New token",
            "token": obj,
            "plaintext": request.META.pop(_PLAINTEXT),
        }
        return TemplateResponse(request, "admin/permissions_app/token/issued.html", context)

    @admin.action(description="Revoke selected tokens", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        """Revoke the chosen tokens, and say of each that could not be why."""
        by = operator(_person(request))
        for token in queryset:
            try:
                tokens.revoke_token(by, token.pk)
            except Refusal as refusal:
                self.message_user(request, f"{token}: {refusal.message}.", messages.WARNING)
            else:
                self.message_user(request, f"{token} is revoked.", messages.SUCCESS)


class OfVisibleSessions(ReadOnlyAdmin):
    """Rows of sessions that the person may see: being a superuser shows nothing by itself (behaviour 2.6)."""

    list_select_related = ["session"]
    show_full_result_count = False
    needs = ""
    """The scope that shows such rows beside the session's own visibility (behaviour 8.8)."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return those of visible sessions, to whom the scope shows them."""
        found = super().get_queryset(request)
        shown = not self.needs or holds(request, self.needs)
        return found.filter(session__in=visible_sessions(request)) if shown else found.none()


def holds(request: HttpRequest, scope: str) -> bool:
    """Tell whether the person who is logged in holds a scope."""
    return scope in operator(_person(request)).scopes


def visible_sessions(request: HttpRequest) -> QuerySet[Session]:
    """Return the sessions that the person who is logged in may see."""
    return operator(_person(request)).visible.restrict(Session.objects.all())


@admin.register(PermissionRequest)
class PermissionRequestAdmin(OfVisibleSessions):
    """What was asked, and what was answered."""

    needs = "security.read"
    list_display = ["id", "session", "tool_name", "tier", "state", "choice", "resolved_by", "created_at"]
    list_filter = ["state", "tier"]
    search_fields = ["id", "session__id", "tool_name"]
    ordering = ["-created_at"]


@admin.register(Grant)
class GrantAdmin(OfVisibleSessions):
    """What was allowed for later calls."""

    needs = "grant.manage"
    list_display = ["id", "session", "tool_name", "scope", "state", "principal_id", "created_at"]
    list_filter = ["state", "scope"]
    search_fields = ["id", "session__id", "principal_id", "tool_name"]
    ordering = ["-created_at"]


@admin.register(DenyRule)
class DenyRuleAdmin(OfVisibleSessions):
    """What was refused for later calls."""

    needs = "grant.manage"
    list_display = ["id", "session", "tool_name", "principal_id", "created_at", "revoked_at"]
    search_fields = ["id", "session__id", "principal_id", "tool_name"]
    ordering = ["-created_at"]


@admin.register(AuditRecord)
class AuditRecordAdmin(ReadOnlyAdmin):
    """The audit log, newest first, for who holds `audit.read`; records that wait for the chain have no sequence yet."""

    list_display = ["sequence", "at", "level", "name", "session_id", "principal_id", "said"]
    list_filter = ["level", "name"]
    search_fields = ["session_id", "principal_id"]
    ordering = ["-id"]
    fields = ["sequence", "at", "level", "name", "session_id", "principal_id", "said"]
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return every record, to whom the scope shows them."""
        found = super().get_queryset(request)
        return found if holds(request, "audit.read") else found.none()

    @admin.display(description="payload")
    def said(self, record: AuditRecord) -> str:
        """Return the payload as text."""
        return record.payload.decode()


def _person(request: HttpRequest) -> User:
    assert request.user.is_authenticated  # noqa: S101 - the admin lets nobody else in
    return request.user
