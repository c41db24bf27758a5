"""What ends while it is in use (behaviour 1.4, 2.6)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session as ConsoleSession
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from permissions_app import tokens, watch
from permissions_app.authentication import by_console_session, by_token, unix_identity
from permissions_app.models import Token
from permissions_app.principals import scope_permissions
from permissions_app.scopes import command_line
from sessions_app import clock
from sessions_app.callers import Attached
from sessions_app.encoding import encode
from sessions_app.models import Attachment, Connection
from tests.permissions_app import world

if TYPE_CHECKING:
    from permissions_app.principals import Identity

pytestmark = pytest.mark.django_db


def hers(person: User) -> Identity:
    return world.identity_of(person, ("prompt.list",))


def login(person: User) -> Identity:
    browser = Client()
    browser.force_login(person, "django.contrib.auth.backends.ModelBackend")
    key = browser.session.session_key
    assert key is not None
    return by_console_session(key)


def rename(person: User) -> None:
    person.first_name = "Ada"
    person.save()


def give_more(person: User) -> None:
    person.user_permissions.add(*scope_permissions())


def disable(person: User) -> None:
    person.is_active = False
    person.save()


def take_scopes(person: User) -> None:
    person.user_permissions.clear()


def remove(person: User) -> None:
    person.delete()


def new_password(person: User) -> None:
    person.set_password("another one")
    person.save()


def log_out(_person: User) -> None:
    ConsoleSession.objects.all().delete()


def revoke(_person: User) -> None:
    for token in Token.objects.all():
        tokens.revoke_token(command_line(), token.id)


@pytest.mark.parametrize(
    ("open_", "happens", "ends"),
    [
        (hers, rename, False),
        (hers, give_more, False),
        (hers, new_password, False),
        (hers, log_out, False),
        (hers, revoke, True),
        (hers, disable, True),
        (hers, take_scopes, True),
        (hers, remove, True),
        (login, rename, False),
        (login, give_more, False),
        (login, revoke, False),
        (login, new_password, True),
        (login, log_out, True),
        (login, disable, True),
        (login, take_scopes, True),
        (login, remove, True),
    ],
)
def test_a_credential_ends_when_what_it_rests_on_does(
    open_: Callable[[User], Identity], happens: Callable[[User], None], ends: bool
) -> None:
    person = world.user("ada", ("prompt.list",))
    identity = open_(person)
    other = world.identity_of("robot", ())
    assert watch.ended([identity]) == set()
    happens(person)
    assert watch.ended([identity]) == ({identity.credential} if ends else set())
    if happens is not revoke:
        assert watch.ended([other, identity]) == watch.ended([identity])


def test_a_credential_ends_with_its_time() -> None:
    ends = clock.now() + timedelta(hours=1)
    identity = by_token(world.token_of("robot", (), expires_at=ends).plaintext.encode())
    with clock.using(lambda: ends - timedelta(seconds=1)):
        assert watch.ended([identity]) == set()
    with clock.using(lambda: ends):
        assert watch.ended([identity]) == {identity.credential}
    assert watch.ended([login(world.user("ada"))]) == set()


def test_scopes_from_a_group_end_with_the_membership() -> None:
    person = world.user("ada")
    group = Group.objects.create(name="readers")
    group.permissions.set(scope_permissions().filter(codename="prompt.list"))
    group.user_set.add(person)
    identity = hers(person)
    assert identity.principal.scopes == ("prompt.list",)
    assert watch.ended([identity]) == set()
    person.groups.clear()
    assert watch.ended([identity]) == {identity.credential}


def test_a_file_token_ends_when_the_file_takes_a_scope_away() -> None:
    identity = world.identity_of("robot", ("prompt.list",))
    Token.objects.update(scopes=())
    assert watch.ended([identity]) == {identity.credential}


def test_what_the_transport_proves_never_ends_here() -> None:
    assert watch.ended([unix_identity(1000, None, None)]) == set()


def test_any_number_of_identities_is_one_query() -> None:
    people = [world.user(f"user{number}", ("prompt.list",)) for number in range(4)]
    identities = [hers(person) for person in people] + [login(person) for person in people]
    with CaptureQueriesContext(connection) as asked:
        assert watch.ended(identities) == set()
    assert len(asked) == 1
    with CaptureQueriesContext(connection) as asked:
        assert watch.ended([]) == set()
    assert len(asked) == 0


def test_an_attachment_falls_with_the_share_that_carried_it() -> None:
    ada, bob, carol = (world.identity_of(world.user(name), ()) for name in ("ada", "bob", "carol"))
    session = world.make_session(carol.principal.id)
    team = Group.objects.create(name="team")
    people = {name: User.objects.get(username=name) for name in ("ada", "bob", "carol")}
    world.share(session, "write", people["ada"])
    team.user_set.add(people["bob"])
    world.share(session, "read", team)
    held: dict[str, str] = {}
    for name, identity, mode in (
        ("ada writes", ada, "read_write"),
        ("ada reads", ada, "read_only"),
        ("bob reads", bob, "read_only"),
        ("carol owns", carol, "owner_read_write"),
    ):
        access = world.attach(session, identity, mode).access  # type: ignore[arg-type] # a literal of the table
        assert isinstance(access, Attached)
        held[name] = access.attachment_id
    assert watch.withdrawn(held.values()) == set()
    people["bob"].groups.clear()
    assert watch.withdrawn(held.values()) == {held["bob reads"]}
    session.user_shares.all().delete()
    world.share(session, "read", people["ada"])
    with CaptureQueriesContext(connection) as asked:
        assert watch.withdrawn(held.values()) == {held["bob reads"], held["ada writes"]}
    assert len(asked) == 1


def test_a_logical_connection_falls_with_its_share_too() -> None:
    """Between its streams no process looks after it; a token that shows every session needs no share."""
    ada, admin, carol = (world.identity_of(world.user(name), ()) for name in ("ada", "admin", "carol"))
    session = world.make_session(carol.principal.id)
    held = {
        "ada": world.attach(session, ada, "read_only").access,
        "admin": world.attach(session, admin, "read_only").access,
        "carol": world.attach(session, carol, "read_only").access,
    }
    for name, identity in (("ada", ada), ("admin", admin), ("carol", carol)):
        access = held[name]
        assert isinstance(access, Attached)
        scopes = ("configuration.admin",) if name == "admin" else ()
        shown = msgspec.structs.replace(identity.principal, scopes=scopes)
        Connection.objects.filter(id=access.connection_id).update(principal=encode(shown))
        Attachment.objects.filter(id=access.attachment_id).update(process=None)
    assert isinstance(held["ada"], Attached)
    assert watch.withdrawn_unheld(10) == [(session.id, held["ada"].attachment_id)]
    world.share(session, "read", User.objects.get(username="ada"))
    assert watch.withdrawn_unheld(10) == []
