"""The admin and the commands: tokens made and revoked, everything else shown only (design 6, 7)."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from permissions_app.authentication import by_token
from permissions_app.models import SCOPES, AuditRecord, Grant, Token
from permissions_app.principals import of_service, of_user
from sessions_app.errors import Unauthenticated
from tests.permissions_app import world
from tests.permissions_app.test_requests import ask

pytestmark = pytest.mark.django_db

TABLES = ("principal", "token", "permissionrequest", "grant", "denyrule", "auditrecord")


@pytest.fixture
def operator() -> User:
    return world.user("ada", SCOPES, is_superuser=True, is_staff=True)


@pytest.fixture
def browser(operator: User) -> Client:
    made = Client()
    made.force_login(operator, "django.contrib.auth.backends.ModelBackend")
    return made


def url(table: str, page: str, *args: object) -> str:
    return reverse(f"admin:permissions_app_{table}_{page}", args=args)


def issue(browser: Client, **said: object) -> str:
    """Make a token in the admin and return the page that answers."""
    form = {"name": "laptop", "principal": of_service("robot").id, "scopes": ["prompt.list"], **said}
    return browser.post(url("token", "add"), form).content.decode()


def shown_token(page: str) -> bytes:
    found = re.search(r"<code>(\S+)</code>", page)
    assert found is not None
    return found[1].encode()


@pytest.mark.usefixtures("dispatched")
def test_every_table_is_shown_and_none_is_edited(browser: Client) -> None:
    asked = ask("write")
    asked.respond("approve_session")
    world.token_of("robot", ())
    for table in TABLES:
        assert browser.get(url(table, "changelist")).status_code == 200
    for row in (Grant.objects.get(), AuditRecord.objects.latest("id"), Token.objects.latest("created_at")):
        table = row._meta.model_name or ""
        assert browser.get(url(table, "change", row.pk)).status_code == 200
        assert browser.post(url(table, "change", row.pk), {}).status_code == 403
        assert browser.post(url(table, "delete", row.pk), {"post": "yes"}).status_code == 403
    for table in TABLES:
        assert browser.get(url(table, "add")).status_code == (200 if table == "token" else 403)


@pytest.mark.usefixtures("dispatched")
def test_requests_and_grants_are_shown_to_those_who_may_see_their_sessions(browser: Client) -> None:
    """Being a superuser shows nothing by itself (behaviour 2.6)."""
    asked = ask("write")
    asked.respond("approve_session")
    stranger = Client()
    nobody = world.user("nobody", (), is_superuser=True, is_staff=True)
    stranger.force_login(nobody, "django.contrib.auth.backends.ModelBackend")
    for table in ("permissionrequest", "grant"):
        page = url(table, "changelist")
        assert asked.session.id in browser.get(page).content.decode()
        assert asked.session.id not in stranger.get(page).content.decode()


def test_a_token_made_in_the_admin_is_shown_once_and_audited(browser: Client, operator: User) -> None:
    plaintext = shown_token(issue(browser))
    known = by_token(plaintext)
    assert known.principal.scopes == ("prompt.list",)
    token = Token.objects.get()
    assert (token.source, token.name) == ("admin", "laptop")
    record = AuditRecord.objects.get(name="operator.token.create")
    assert record.principal_id == of_user(operator).id
    for page in (url("token", "changelist"), url("token", "change", token.pk), url("token", "add")):
        assert plaintext not in browser.get(page).content


@pytest.mark.parametrize(
    "said",
    [
        {"scopes": ["everything"]},
        {"principal": "pri_unknown"},
        {"expires_at_0": "2001-01-01", "expires_at_1": "00:00"},
    ],
)
def test_a_token_that_may_not_be_is_an_error_of_the_form(browser: Client, said: dict[str, object]) -> None:
    assert "errornote" in issue(browser, **said)
    assert not Token.objects.exists()


def test_a_user_gets_no_token_with_a_scope_it_lacks(browser: Client) -> None:
    poor = of_user(world.user("bob", ("prompt.list",)))
    assert "does not hold the scope" in issue(browser, principal=poor.id, scopes=["audit.read"])
    assert shown_token(issue(browser, principal=poor.id))


def test_tokens_are_revoked_in_the_admin_by_an_action(browser: Client) -> None:
    plaintext = shown_token(issue(browser))
    chosen = {"action": "revoke", "_selected_action": [Token.objects.get().pk]}
    for said in ("is revoked.", "is revoked already."):
        page = browser.post(url("token", "changelist"), chosen, follow=True).content.decode()
        assert said in page
    with pytest.raises(Unauthenticated):
        by_token(plaintext)
    assert AuditRecord.objects.filter(name="operator.token.revoke").count() == 1


def run(*args: str) -> str:
    said = StringIO()
    call_command(*args, stdout=said, stderr=StringIO())
    return said.getvalue()


def test_a_token_is_made_listed_and_revoked_by_command() -> None:
    plaintext = run("token", "create", "--service", "robot", "--all-scopes", "--name", "backup").strip()
    assert by_token(plaintext.encode()).principal.scopes == SCOPES
    token = Token.objects.get()
    listed = run("token", "list").split("\t")
    assert listed[0] == token.id
    assert listed[3] == "active"
    assert plaintext not in "".join(listed)
    run("token", "revoke", token.id)
    assert run("token", "list").split("\t")[3] == "revoked"
    with pytest.raises(CommandError, match="revoked already"):
        run("token", "revoke", token.id)


def test_a_token_for_a_user_holds_what_was_asked_for_until_its_expiry() -> None:
    world.user("ada", ("prompt.list", "audit.read"))
    made = run(
        "token", "create", "--user", "ada", "--scope", "audit.read", "--expires", "2999-01-01T00:00:00Z"
    )
    assert by_token(made.strip().encode()).principal.scopes == ("audit.read",)
    assert "active until 2999" in run("token", "list")


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--user", "nobody", "--scope", "audit.read"], "there is no user nobody"),
        (["--user", "bob", "--scope", "audit.read"], "does not hold"),
        (["--service", "robot", "--scope", "everything"], "invalid choice"),
        (["--service", "robot"], "required"),
        (["--all-scopes"], "required"),
        (["--service", "robot", "--all-scopes", "--expires", "soon"], "expires"),
        (["--service", "robot", "--all-scopes", "--expires", "2001-01-01"], "has passed"),
    ],
)
def test_a_bad_token_command_is_one_line(args: list[str], complaint: str) -> None:
    world.user("bob")
    with pytest.raises(CommandError, match=complaint):
        run("token", "create", *args)
    assert not Token.objects.exists()


@pytest.mark.usefixtures("dispatched")
def test_grants_are_listed_and_revoked_by_command() -> None:
    asked = ask("write")
    asked.respond("approve_session")
    grant = Grant.objects.get()
    assert run("grant", "list").split("\t")[:3] == [grant.id, asked.session.id, "active"]
    assert run("grant", "list", "--session", "ses_other") == ""
    run("grant", "revoke", asked.session.id, grant.id)
    assert "revoked" in run("grant", "list")
    with pytest.raises(CommandError, match="revoked already"):
        run("grant", "revoke", asked.session.id, grant.id)
