"""Health: what each probe finds, and the status that follows (behaviour 14.1)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from channels.layers import BaseChannelLayer, InMemoryChannelLayer
from django.core.files.storage import FileSystemStorage
from django.db import connections
from pytest_django import Settings

from jobs_app.models import Job, Schedule
from ochat_site.dialects.ochat1.types import HealthComponent, HealthResult
from ochat_site.health import Health, Pace
from permissions_app import audit
from permissions_app.audit_batch import AuditBatch
from permissions_app.models import AuditRecord, PermissionRequest
from sessions_app import ids, limits, processes, store
from sessions_app.broadcast import Broadcast
from sessions_app.db import database_now, in_db
from sessions_app.models import (
    CatalogState,
    Operation,
    Process,
    Receipt,
    Session,
    StartTicket,
    Store,
    SweepLease,
    ToolCall,
)
from tests.permissions_app import world
from tests.support.waiting import eventually, until

TEN_MINUTES = timedelta(minutes=10)
NAMES = [
    *("daemon", "storage", "session_registry"),
    *("start_scheduler", "job_scheduler", "schedule_scheduler", "permission_scheduler", "maintenance"),
    *("configuration", "workers", "broker", "audit"),
]


@dataclass
class Serving:
    """What a process knows of itself."""

    ready: bool = True
    draining: bool = False


@dataclass
class Looker:
    """A process that has started and looks each time it is asked, unless a test says otherwise."""

    broadcast: Broadcast = field(default_factory=lambda: Broadcast(InMemoryChannelLayer()))
    batch: AuditBatch = field(default_factory=lambda: AuditBatch(capacity=1))
    pace: Pace = field(default_factory=lambda: Pace(look=0, write=0))
    process: Serving = field(default_factory=Serving)

    def __post_init__(self) -> None:
        self._health = Health(self.broadcast, self.batch, self.pace)

    def check(self) -> HealthResult:
        return self._health.check(self.process)

    def wrong(self) -> dict[str, str]:
        """Return what is said of the components that are not healthy."""
        return messages(self.check())


def messages(health: HealthResult) -> dict[str, str]:
    return {one.name: str(one.message) for one in health.components if one.status != "healthy"}


def component(health: HealthResult, name: str) -> HealthComponent:
    (found,) = [one for one in health.components if one.name == name]
    return found


def prepare() -> None:
    """Make a store that is served by a worker and swept."""
    now = database_now()
    store.server_id()
    worker = processes.register("worker")
    SweepLease.objects.create(process_id=worker, expires_at=now + TEN_MINUTES, covered_since=now)


@pytest.fixture
def looker(db: None) -> Iterator[Looker]:
    prepare()
    yield Looker()
    processes.leave()
    store.forget()


def test_a_server_that_is_well_is_healthy(looker: Looker) -> None:
    health = looker.check()
    assert messages(health) == {}
    assert (health.status, health.ready, health.draining) == ("healthy", True, False)
    assert [one.name for one in health.components] == NAMES
    assert Store.objects.get().probed_at is not None


@pytest.mark.parametrize(
    ("process", "message"), [(Serving(ready=False), "starting"), (Serving(draining=True), "draining")]
)
def test_a_process_that_starts_or_drains_is_degraded_and_not_ready(
    looker: Looker, process: Serving, message: str
) -> None:
    looker.process = process
    health = looker.check()
    assert messages(health) == {"daemon": message}
    assert (health.status, health.ready, health.draining) == ("degraded", False, process.draining)


def late_job(due: datetime) -> None:
    Job.objects.create(
        id="job_late",
        session=world.make_session(),
        generation=0,
        kind="model_call",
        payload=b"{}",
        status="queued",
        retry_policy=b"{}",
        created_at=due,
    )


def late_schedule(due: datetime) -> None:
    Schedule.objects.create(
        id="sch_late",
        session=world.make_session(),
        generation=0,
        payload=b"{}",
        created_at=due,
        next_due_at=due,
        misfire="skip",
        status="scheduled",
    )


def late_turn(due: datetime) -> Operation:
    return Operation.objects.create(
        id=ids.new_id("op"),
        session=world.make_session(),
        generation=0,
        kind="turn",
        state="running",
        started_at=due,
        updated_at=due,
    )


def late_request(due: datetime) -> None:
    turn = late_turn(database_now())
    call = ToolCall.objects.create(
        session=turn.session,
        operation=turn,
        position=0,
        call_id="c",
        name="write",
        kind="function",
        arguments="{}",
        state="waiting",
    )
    PermissionRequest.objects.create(
        id="prm_late",
        session=turn.session,
        generation=0,
        operation=turn,
        tool_call=call,
        call_id="c",
        tool_name="write",
        runtime_identity="",
        tier="edit",
        choices=[],
        fallback="deny",
        created_at=due,
        expires_at=due,
    )


def late_start(due: datetime) -> None:
    StartTicket.objects.create(
        session=world.make_session(),
        principal_id="pri_a",
        prompt_id="prd_a",
        domain="",
        exclusive=False,
        blocked_on="failed",
        failures=1,
        retry_at=due,
    )


def late_receipt(due: datetime) -> None:
    Receipt.objects.create(
        principal_id="pri_a",
        method="session.create",
        key="k",
        digest=b"",
        state="success",
        outcome=b"{}",
        created_at=due,
        expires_at=due,
    )


def late_audit(due: datetime) -> None:
    audit.record_reload({})
    AuditRecord.objects.update(at=due)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("start_scheduler", late_start),
        ("job_scheduler", late_job),
        ("schedule_scheduler", late_schedule),
        ("permission_scheduler", late_request),
        ("maintenance", late_receipt),
        ("workers", late_turn),
        ("audit", late_audit),
    ],
)
def test_what_is_overdue_for_long_degrades_who_should_have_seen_to_it(
    looker: Looker, name: str, make: Callable[[datetime], Any]
) -> None:
    make(database_now() - TEN_MINUTES)
    wrong = looker.wrong()
    assert set(wrong) == {name}
    assert wrong[name].endswith("s overdue")
    assert looker.check().ready


def test_what_is_due_only_now_is_no_fault(looker: Looker) -> None:
    for make in (late_start, late_job, late_schedule, late_request, late_receipt, late_turn, late_audit):
        make(database_now())
    assert looker.wrong() == {}


def test_what_waits_for_its_session_is_no_fault(looker: Looker) -> None:
    """Behaviour 10.1: "Jobs of a session whose desired state is stopped are not claimed"; 9.5: archived ones are hidden."""
    late_job(database_now() - TEN_MINUTES)
    late_schedule(database_now() - TEN_MINUTES)
    Session.objects.update(desired="stopped", archived_at=database_now())
    assert looker.wrong() == {}
    Session.objects.update(archived_at=None)
    assert set(looker.wrong()) == {"schedule_scheduler"}


def test_nobody_sweeps(looker: Looker) -> None:
    SweepLease.objects.update(expires_at=database_now() - TEN_MINUTES)
    assert set(looker.wrong()) == {name for name in NAMES if name.endswith("_scheduler")} | {"maintenance"}
    SweepLease.objects.all().delete()
    assert looker.wrong()["maintenance"] == "no process holds the sweep lease"


def test_no_worker_runs(looker: Looker) -> None:
    for instead in ({"draining": True}, {"kind": "web"}, {"beat_at": database_now() - TEN_MINUTES}):
        Process.objects.update(**{"draining": False, "kind": "worker", "beat_at": database_now(), **instead})
        assert looker.wrong() == {"workers": "no worker is running"}


def test_every_place_for_running_sessions_is_taken(looker: Looker) -> None:
    world.make_session()
    with limits.using(limits.ServerSettings(max_running_sessions=1)):
        assert set(looker.wrong()) == {"session_registry"}


def test_a_file_that_was_refused(looker: Looker) -> None:
    CatalogState.objects.create(loaded_at=database_now(), error="ochat.toml: line 3: nonsense")
    assert looker.wrong() == {"configuration": "ochat.toml: line 3: nonsense"}


def test_audit_records_were_lost(looker: Looker) -> None:
    for _ in range(3):
        looker.batch.denied("pri_a", "session.stop", "permission_denied")
    assert looker.wrong() == {"audit": "2 records were lost since this process began"}


async def test_the_broker_is_away(transactional_db: None) -> None:
    class Away(BaseChannelLayer):
        async def new_channel(self, prefix: str = "") -> str:
            raise ConnectionRefusedError

    await in_db(prepare)
    broadcast = Broadcast(Away())
    await broadcast.start()
    try:
        await eventually(lambda: not broadcast.reachable, "the first call to the layer fails")
        assert set(await in_db(Looker(broadcast).wrong)) == {"broker"}
    finally:
        await broadcast.stop()
        await in_db(processes.leave)
        store.forget()


def test_a_storage_that_takes_nothing_is_unhealthy(
    looker: Looker, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    before = settings.STORAGES
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": tmp_path / "file"},
        },
    }
    health = looker.check()
    assert component(health, "storage") == HealthComponent(
        name="storage", status="unhealthy", message="fails"
    )
    assert component(health, "workers").message == "not looked at: the storage fails"
    assert (health.status, health.ready) == ("unhealthy", False)
    settings.STORAGES = before
    assert looker.check().status == "healthy", "the next look tries again at once"


def test_a_probe_that_fails_is_what_it_finds(looker: Looker) -> None:
    health = Looker(batch=cast("AuditBatch", None)).check()
    assert messages(health) == {"audit": "fails"}
    assert (health.status, health.ready) == ("unhealthy", False)


def test_a_look_is_shared(looker: Looker) -> None:
    looker = Looker(pace=Pace(look=3600))
    first = looker.check()
    Process.objects.all().delete()
    assert looker.check() == first
    looker.process.draining = True
    assert looker.check().draining, "what the process knows of itself is of now"


class Stuck(FileSystemStorage):
    """A storage that answers when a test says so."""

    gate = threading.Event()
    entered = threading.Event()

    def exists(self, name: str) -> bool:
        self.entered.set()
        self.gate.wait(30)
        return super().exists(name)


def test_a_look_that_does_not_come_back_holds_up_nobody_else(
    transactional_db: None, settings: Settings, tmp_path: Path
) -> None:
    prepare()
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {"BACKEND": f"{__name__}.Stuck", "OPTIONS": {"location": tmp_path}},
    }
    patient, hasty = Looker(pace=Pace(look=0)), Looker(pace=Pace(look=0, patience=0))

    def look(looker: Looker) -> None:
        looker.check()
        connections.close_all()

    threads = [threading.Thread(target=look, args=[looker]) for looker in (patient, hasty)]
    try:
        for looker, thread in zip((patient, hasty), threads, strict=True):
            Stuck.entered.clear()
            thread.start()
            until(Stuck.entered.is_set, "the look reaches the storage")
            assert not Stuck.gate.is_set(), looker
        assert patient.check().status == "degraded", "nothing is known yet"
        health = hasty.check()
    finally:
        Stuck.gate.set()
        for thread in threads:
            thread.join(30)
    assert component(health, "storage").message == "does not answer"
    assert (health.status, health.ready) == ("unhealthy", False)
    assert hasty.check().status == patient.check().status == "healthy"
    processes.leave()
    store.forget()
