"""The stock admin over catalog, sessions and processes: shown to whom it may be shown, edited by nobody (design 7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from jobs_app.models import Job, Schedule
from permissions_app.models import SCOPES, AuditRecord
from permissions_app.principals import of_user
from sessions_app import catalog, clock, ids, processes
from sessions_app.encoding import encode
from sessions_app.models import (
    Archive,
    ArchivedSession,
    Attachment,
    Blob,
    CatalogState,
    Connection,
    LooseContent,
    Operation,
    Process,
    ProfileRevision,
    PromptDefinition,
    PromptRevision,
    Session,
    StartTicket,
    WorkspaceDefinition,
    WorkspaceInstance,
)
from sessions_app.records import Principal
from tests.permissions_app import world
from tests.support.catalogs import Catalog

pytestmark = pytest.mark.django_db

MODELS = (
    Archive,
    Attachment,
    Blob,
    CatalogState,
    Connection,
    Job,
    LooseContent,
    Operation,
    Process,
    ProfileRevision,
    PromptDefinition,
    PromptRevision,
    Schedule,
    Session,
    StartTicket,
    WorkspaceDefinition,
    WorkspaceInstance,
)


def browser(name: str, scopes: tuple[str, ...] = ()) -> Client:
    """Log a superuser in who holds these scopes."""
    made = Client()
    user = world.user(name, scopes, is_superuser=True, is_staff=True)  # type: ignore[arg-type]  # names of scopes
    made.force_login(user, "django.contrib.auth.backends.ModelBackend")
    return made


def url(model: type[Model], page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def turn(session: Session) -> Operation:
    now = clock.now()
    return Operation.objects.create(
        id=ids.new_id("op"),
        session=session,
        generation=0,
        kind="turn",
        state="running",
        started_at=now,
        updated_at=now,
    )


def job(session: Session) -> Job:
    return Job.objects.create(
        id=ids.new_id("job"),
        session=session,
        generation=0,
        kind="model_call",
        payload=b'"what it is to say"',
        status="queued",
        retry_policy=b'{"type":"never"}',
        created_at=clock.now(),
    )


def schedule(session: Session) -> Schedule:
    return Schedule.objects.create(
        id=ids.new_id("sch"),
        session=session,
        generation=0,
        payload=b'"what it is to say"',
        status="scheduled",
        misfire="fail",
        created_at=clock.now(),
        next_due_at=clock.now(),
    )


def archive(session: Session) -> Archive:
    return Archive.objects.create(
        session=session, revision=1, name="n", sha256="0", size=1, head=b"{}", created_at=clock.now()
    )


def attachment(session: Session) -> Attachment:
    reader = Principal(id="pri_reader", authentication_kind="http.static_bearer", scopes=(), attributes={})
    now = clock.now()
    connection = Connection.objects.create(
        id=ids.new_id("con"), transport="http", principal=encode(reader), created_at=now, last_active_at=now
    )
    return Attachment.objects.create(
        id=ids.new_id("att"),
        session=session,
        connection=connection,
        principal_id=reader.id,
        mode="read_only",
        created_at=now,
    )


def blob(session: Session) -> Blob:
    return Blob.objects.create(
        id=ids.new_id("blb"),
        session=session,
        kind="file",
        media_type="text/plain",
        byte_length=1,
        sha256="0",
        created_at=clock.now(),
    )


def ticket(session: Session) -> StartTicket:
    return StartTicket.objects.create(
        session=session, principal_id="", prompt_id="prd_a", domain="0", exclusive=False, blocked_on="prompt"
    )


OF_A_SESSION = (turn, job, schedule, archive, attachment, blob, ticket)


@pytest.fixture
def process_id() -> Iterator[str]:
    yield processes.register("worker")
    processes.leave()


@pytest.mark.usefixtures("process_id")
def test_every_table_is_shown_and_none_is_edited(tmp_path: Path) -> None:
    admin = browser("ada", SCOPES)
    catalog.load(Catalog(tmp_path).source)
    session = world.make_session()
    for make in OF_A_SESSION:
        make(session)
    LooseContent.objects.create(digest="0" * 64, since=clock.now())
    WorkspaceInstance.objects.create(
        id="wsi_a", definition=session.workspace, path="/", conflict_domain="/", created_at=clock.now()
    )
    for model in MODELS:
        row = model._default_manager.all()[0]
        assert admin.get(url(model, "changelist")).status_code == 200
        assert admin.get(url(model, "change", row.pk)).status_code == 200
        assert admin.get(url(model, "add")).status_code == 403
        assert admin.post(url(model, "change", row.pk), {}).status_code == 403
        assert admin.post(url(model, "delete", row.pk), {"post": "yes"}).status_code == 403


def test_entries_say_where_they_are_configured(tmp_path: Path) -> None:
    catalog.load(Catalog(tmp_path).source)
    WorkspaceDefinition.objects.create(
        id="wsd_mine", name="mine", kind="physical", path="/", access="read_only"
    )
    page = browser("ada").get(url(WorkspaceDefinition, "changelist")).content.decode()
    assert page.count("the catalog file") == 1
    assert page.count("the admin") >= 1


def test_sessions_are_shown_to_those_who_may_see_them() -> None:
    """Being a superuser shows nothing by itself (behaviour 2.6)."""
    needed = ("session.transcript.read", "session.message.send", "security.read", "grant.manage")
    owner, stranger = browser("owner", needed), browser("stranger", needed)
    session = world.make_session(creator=of_user(User.objects.get(username="owner")).id)
    rows: list[Model] = [session, *(make(session) for make in OF_A_SESSION)]
    overseer = browser("overseer", (*needed, "configuration.admin"))

    for person, sees in ((owner, True), (overseer, True), (stranger, False)):
        for row in rows:
            listed = person.get(url(type(row), "changelist")).context["cl"].result_list
            assert (row in listed) is sees
            page = person.get(url(type(row), "change", row.pk))
            assert (page.status_code == 200) is sees
            assert "what it is to say" not in page.content.decode()


def test_what_a_scope_shows_is_hidden_without_it() -> None:
    """2.5, 8.8: nobody sees more than their scopes show, in the admin neither."""
    overseer = browser("overseer", ("configuration.admin",))
    session = world.make_session()
    rows: dict[type[Model], Model] = {type(row): row for row in (job(session), schedule(session))}
    rows[AuditRecord] = AuditRecord.objects.create(at=clock.now(), level="info", name="a", payload=b"{}")
    for model, row in rows.items():
        assert not overseer.get(url(model, "changelist")).context["cl"].result_list
        assert overseer.get(url(model, "change", row.pk)).status_code == 302

    seeing = browser("seeing", ("configuration.admin", "session.message.send", "audit.read"))
    for model, row in rows.items():
        assert row in seeing.get(url(model, "changelist")).context["cl"].result_list


def test_archived_sessions_come_back_by_those_who_see_all() -> None:
    """9.5: "an operator restores an archived session (…, admin action, audited)"."""
    owner, overseer = browser("owner"), browser("overseer", ("configuration.admin",))
    session = world.make_session(creator=of_user(User.objects.get(username="owner")).id)
    kept, erased = session.id, world.make_session().id
    Session.objects.update(archived_at=clock.now(), desired="stopped", observed="stopped")
    Session.objects.filter(id=erased).update(removed=True)
    wanted = {"action": "restore", "_selected_action": [kept, erased]}
    page = url(ArchivedSession, "changelist")

    assert kept not in owner.get(page).content.decode()
    owner.post(page, wanted)
    assert Session.objects.filter(archived_at=None).count() == 0
    shown = overseer.get(page).content.decode()
    assert (kept in shown, erased in shown) == (True, False)
    overseer.post(page, wanted)
    assert [row.id for row in Session.objects.filter(archived_at=None)] == [kept]
    record = AuditRecord.objects.get(name="operator.restore")
    assert (record.session_id, b'"operator":"overseer"' in record.payload) == (kept, True)


def test_processes_are_shown(process_id: str) -> None:
    assert process_id in browser("ada").get(url(Process, "changelist")).content.decode()
