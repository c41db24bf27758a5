"""What an identity sees: both what is shown and what is hidden (behaviour 2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test.utils import CaptureQueriesContext

from permissions_app.models import SCOPES
from permissions_app.scopes import access_session, operator
from sessions_app import clock, listing
from sessions_app.errors import PermissionDenied, SessionNotFound
from sessions_app.models import Session
from tests.permissions_app import world

if TYPE_CHECKING:
    from sessions_app.callers import Caller
    from sessions_app.records import AttachmentMode

pytestmark = pytest.mark.django_db

MODES: tuple[AttachmentMode, ...] = ("read_only", "read_write", "owner_read_write")
EVERYTHING_ELSE = tuple(scope for scope in SCOPES if scope != "configuration.admin")


def seen(caller: Caller) -> set[str]:
    """Return the ids a listing shows, after checking that single sessions and pages are judged alike."""
    listed = set(caller.visible.restrict(Session.objects.all()).values_list("id", flat=True))
    assert listed == {one.id for one in Session.objects.all() if caller.visible.sees(one)}
    paged, after = [], ""
    while page := listing.list_sessions(caller.visible, after=after, limit=1):
        after = page[0].id
        paged.append(after)
    assert paged == list(Session.objects.filter(id__in=listed).order_by("id").values_list("id", flat=True))
    return listed


def covered(caller: Caller, session: Session) -> list[str]:
    return [mode for mode in MODES if caller.visible.covers(session, mode)]


def test_a_creator_sees_its_sessions_and_no_others() -> None:
    ada, bob = (
        world.identity_of(world.user(name, EVERYTHING_ELSE), EVERYTHING_ELSE) for name in ("ada", "bob")
    )
    hers, his = world.make_session(ada.principal.id), world.make_session(bob.principal.id)
    nobodys = world.make_session()
    caller = world.reader(ada)
    assert seen(caller) == {hers.id}
    assert covered(caller, hers) == [*MODES]
    assert covered(caller, his) == covered(caller, nobodys) == []
    assert access_session(caller, hers.id) == hers
    for hidden in (his, nobodys):
        with pytest.raises(PermissionDenied):
            access_session(caller, hidden.id)
    with pytest.raises(SessionNotFound):
        access_session(caller, "ses_unknown")


def test_a_service_sees_what_it_created_only() -> None:
    robot = world.identity_of("robot", EVERYTHING_ELSE)
    its = world.make_session(robot.principal.id)
    world.make_session("pri_somebody")
    assert seen(world.reader(robot)) == {its.id}


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize(("level", "modes"), [("read", 1), ("write", 2), ("own", 3)])
def test_a_share_shows_one_session_to_its_user_or_group(by_group: bool, level: str, modes: int) -> None:
    ada, bob = world.user("ada"), world.user("bob")
    shared, other = world.make_session("pri_carol"), world.make_session("pri_carol")
    group = Group.objects.create(name="team")
    group.user_set.add(ada)
    world.share(shared, level, group if by_group else ada)
    hers, his = (world.reader(world.identity_of(person, ())) for person in (ada, bob))
    assert seen(hers) == {shared.id}
    assert covered(hers, shared) == [*MODES[:modes]]
    assert covered(hers, other) == []
    assert seen(his) == set()
    assert covered(his, shared) == []


def test_a_withdrawn_share_or_membership_hides_again() -> None:
    ada = world.user("ada")
    group = Group.objects.create(name="team")
    group.user_set.add(ada)
    session = world.make_session("pri_carol")
    world.share(session, "read", group)
    caller = world.reader(world.identity_of(ada, ()))
    assert seen(caller) == {session.id}
    group.user_set.clear()
    assert seen(caller) == set()
    world.share(session, "read", ada)
    assert seen(caller) == {session.id}
    session.user_shares.all().delete()
    assert seen(caller) == set()


def test_the_widest_of_several_shares_counts() -> None:
    ada = world.user("ada")
    session = world.make_session("pri_carol")
    for level in ("read", "own"):
        world.share(session, level, ada)
    caller = world.reader(world.identity_of(ada, ()))
    assert covered(caller, session) == [*MODES]
    assert seen(caller) == {session.id}


def test_being_a_superuser_shows_nothing_by_itself() -> None:
    root = world.user("root", is_superuser=True, is_staff=True)
    world.make_session("pri_carol")
    assert seen(world.reader(world.identity_of(root, ()))) == set()
    assert seen(operator(root)) == set()


def test_configuration_admin_in_the_token_shows_every_session() -> None:
    admin = world.user("root", SCOPES)
    session = world.make_session("pri_carol")
    with_it = world.reader(world.identity_of(admin, ["configuration.admin"]))
    without_it = world.reader(world.identity_of(admin, EVERYTHING_ELSE))
    assert seen(with_it) == {session.id}
    assert covered(with_it, session) == [*MODES]
    assert seen(without_it) == set()
    assert covered(without_it, session) == []


@pytest.mark.parametrize("scopes", [(), ("configuration.admin",)])
def test_archived_sessions_are_hidden_from_everybody(scopes: Any) -> None:
    ada = world.user("ada", scopes)
    identity = world.identity_of(ada, scopes)
    session = world.make_session(identity.principal.id)
    world.share(session, "own", ada)
    session.archived_at = clock.now()
    session.save()
    caller = world.reader(identity)
    assert seen(caller) == set()
    assert covered(caller, session) == []
    with pytest.raises(SessionNotFound):
        access_session(caller, session.id)


def test_an_operator_acts_on_what_it_owns_and_not_on_what_it_may_only_write() -> None:
    ada = world.user("ada")
    owned, written = world.make_session("pri_carol"), world.make_session("pri_carol")
    world.share(owned, "own", ada)
    world.share(written, "write", ada)
    assert seen(operator(ada)) == {owned.id}
    chief = world.user("chief", ("configuration.admin",))
    assert seen(operator(chief)) == {owned.id, written.id}


def test_a_listing_is_one_query_and_a_creator_costs_none() -> None:
    ada = world.user("ada")
    identity = world.identity_of(ada, ())
    for _ in range(3):
        world.share(world.make_session("pri_carol"), "read", ada)
    own = world.make_session(identity.principal.id)
    caller = world.reader(identity)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert len(caller.visible.restrict(Session.objects.all())) == 4
    assert len(asked) == 1
    with CaptureQueriesContext(connection) as asked:
        assert caller.visible.sees(own)
    assert len(asked) == 0
