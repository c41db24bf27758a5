"""The store as a whole: its id, the check at start, what its failures are called (behaviour 1.2, 16.1, design 5)."""

from __future__ import annotations

import pytest
from django.db import DataError, InterfaceError, OperationalError, connection, transaction
from django.db.migrations.recorder import MigrationRecorder

from sessions_app import store
from sessions_app.errors import InvalidState, MigrationRequired, PersistenceError, StoreSchemaTooNew
from sessions_app.models import Store
from tests.support.world import World, together


def test_the_server_id_is_the_stores(world: World) -> None:
    """1.2: "server ID (stable for the data store)"."""
    first = store.server_id()
    assert first.startswith("srv_")
    store.forget()
    assert store.server_id() == first
    assert Store.objects.count() == 1


def test_processes_that_start_together_agree_on_the_id(committed_world: World) -> None:
    store.forget()
    assert len(set(together(*[store.server_id] * 4))) == 1


def test_a_fitting_store_is_served(world: World) -> None:
    store.check()


def test_a_store_of_a_newer_version_is_refused(world: World) -> None:
    """16.1: "A process that finds an older or newer store refuses to start with `migration_required` or `store_schema_too_new`"."""
    MigrationRecorder(connection).record_applied("sessions_app", "9999_from_the_future")
    with pytest.raises(StoreSchemaTooNew):
        store.check()


def test_a_store_of_an_older_version_is_refused(world: World) -> None:
    MigrationRecorder(connection).record_unapplied("sessions_app", "0001_initial")
    with pytest.raises(MigrationRequired):
        store.check()


def test_migrations_of_apps_that_are_gone_do_not_matter(world: World) -> None:
    MigrationRecorder(connection).record_applied("plugin_of_old", "0001_initial")
    store.check()


@pytest.mark.parametrize("failure", [OperationalError, DataError])
def test_failures_are_refusals_without_their_text(failure: type[Exception]) -> None:
    """16.1: "`persistence_error` — true from command handling"; nothing of the database's words reaches a client."""
    with pytest.raises(PersistenceError) as refused, store.errors():
        raise failure("password of the database")
    assert refused.value.retryable
    assert "password" not in refused.value.message


def test_refusals_pass(world: World) -> None:
    with pytest.raises(InvalidState), store.errors():
        raise InvalidState("no")


def test_a_lost_connection_is_a_failure_of_the_store() -> None:
    with pytest.raises(PersistenceError), store.errors():
        raise InterfaceError("connection already closed")


def test_a_transaction_that_cannot_go_on_is_a_failure_of_the_store(world: World) -> None:
    with pytest.raises(PersistenceError), store.errors(), transaction.atomic():
        transaction.set_rollback(True)
        Store.objects.count()
