"""The first steps of `up` on a data folder: a store of this version, a catalog, an operator and a token.

Each step looks at what is there and does only what is missing, so a second start keeps everything and an
interrupted first one is completed. Owns the order of the steps. Does not own what they make: principals and
tokens (`permissions_app`), the catalog (`sessions_app.catalog`), the folder itself (`supervisor.py`).
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.core.management.sql import emit_post_migrate_signal
from django.db import OperationalError, connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from ochat_site import configuration
from ochat_site.env import ConfigError, Env
from ochat_site.secrets import make_private_dir, write_private_file
from permissions_app import operators
from sessions_app import catalog, clock, marker, store
from sessions_app.errors import MigrationRequired


def prepare(env: Env) -> Iterator[str]:
    """Take the steps that are missing, and yield a line for each that a person should know of.

    Refuses with `ConfigError` an unreachable database and unwritable files, with `StoreSchemaTooNew` the store
    of a newer version, with `ConfigurationInvalid` folders of another store and a broken catalog.
    """
    yield from migrated(env)
    marker.check(env.data_dir)
    yield from _example_catalog(env)
    yield from _loaded_catalog(env)
    yield from _operator()
    yield from _client_token(env)


def migrated(env: Env) -> Iterator[str]:
    """Make the tables of the store, or bring them to this version, behind a copy of a SQLite file; refuses as `prepare` does."""
    try:
        connection.ensure_connection()
    except OperationalError:
        raise ConfigError("OCHAT_DATABASE_URL: cannot reach the database.") from None
    try:
        store.check()
    except MigrationRequired:
        if connection.introspection.table_names():
            yield from _backup(env)
            call_command("migrate", interactive=False, verbosity=0)
        else:
            make_store()
        store.check()


def make_store() -> None:
    """Make the tables of a new store from the models at once, in one transaction.

    Migrations lead to the same tables, which a test asserts, but take seconds to get there. For the same
    reason no migration may do more to an empty store than change its tables.
    """
    with connection.constraint_checks_disabled(), transaction.atomic(durable=True):
        with connection.schema_editor() as editor:
            for model in apps.get_models():
                if model._meta.can_migrate(connection):
                    editor.create_model(model)
        recorder = MigrationRecorder(connection)
        recorder.ensure_schema()
        for app, name in MigrationLoader(None).disk_migrations:
            recorder.record_applied(app, name)
        # Content types and permissions, among them the scopes.
        emit_post_migrate_signal(verbosity=0, interactive=False, db=connection.alias)


def _backup(env: Env) -> Iterator[str]:
    """Copy a SQLite store; a PostgreSQL server has backups of its own."""
    if connection.vendor != "sqlite":
        return
    make_private_dir(env.data_dir / "backups")
    target = env.data_dir / "backups" / f"before-migration-{clock.now():%Y%m%d-%H%M%S}.sqlite3"
    target.touch(mode=0o600)
    with closing(sqlite3.connect(target)) as copy:
        connection.ensure_connection()
        connection.connection.backup(copy)
    yield f"The store was written by an older version; a copy is in {target}."


def _example_catalog(env: Env) -> Iterator[str]:
    if env.catalog != env.data_dir / "ochat.toml" or env.catalog.exists():
        return
    examples = Path(settings.BASE_DIR) / "examples"
    shutil.copytree(examples / "prompts", env.data_dir / "prompts", dirs_exist_ok=True)
    write_private_file(env.catalog, (examples / "ochat.toml").read_text(encoding="utf-8"))
    yield f"The catalog of prompts and workspaces is {env.catalog}; edit it as you like."


def _loaded_catalog(env: Env) -> Iterator[str]:
    loaded = catalog.load(configuration.source(env.catalog), at_start=True)
    yield from (f"{env.catalog.name}: {problem}" for problem in loaded.problems)


def _operator() -> Iterator[str]:
    made = operators.ensure_operator()
    if made is not None:
        yield (
            f"Operator account: {made.username}, password {made.password} "
            "(shown once; `manage.py changepassword` sets another)."
        )


def _client_token(env: Env) -> Iterator[str]:
    """Make the token of `client.token`, with which the terminal client speaks for the operator."""
    path = env.data_dir / operators.CLIENT_TOKEN
    if path.exists():
        return
    write_private_file(path, operators.issue_client_token() + "\n")
    yield f"A token with all scopes is in {path}."
