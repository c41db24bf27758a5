"""`first_run` on a new folder, on one that is prepared already, and on stores of other versions."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.processes import Installation, Installations


def _new(tmp_path: Path, **variables: str) -> Installation:
    return Installation(tmp_path / "data", variables)


def _store(installation: Installation) -> sqlite3.Connection:
    return sqlite3.connect(installation.data_dir / "ochat.sqlite3")


def test_a_new_folder_gets_a_store_a_catalog_an_operator_and_a_token(tmp_path: Path) -> None:
    installation = _new(tmp_path)
    done = installation.run("first_run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "password" in done.stdout
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in installation.data_dir.iterdir()
        if path.is_file()
    }
    assert set(modes) == {
        "client.token",
        "ochat.sqlite3",
        "ochat.sqlite3.lock",
        "ochat.toml",
        "secret.key",
        "store-id",
    }
    assert set(modes.values()) == {0o600}
    assert installation.token.startswith("ochat_")
    with closing(_store(installation)) as store:
        assert store.execute("SELECT username, is_superuser FROM auth_user").fetchall() == [("operator", 1)]
        assert store.execute("SELECT count(*) FROM auth_user_user_permissions").fetchone() == (14,)


def test_a_second_run_keeps_everything_and_says_nothing(install: Installations) -> None:
    installation = install()
    before = {path: path.read_bytes() for path in installation.data_dir.glob("*.t*")}
    done = installation.run("first_run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert before == {path: path.read_bytes() for path in installation.data_dir.glob("*.t*")}


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_another_command_goes_on_in_the_same_process(install: Installations, database: str) -> None:
    done = install(database).run("first_run", "--then", "check", "--fail-level", "WARNING")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "System check identified no issues (0 silenced).\n"


def test_migrations_lead_to_the_tables_that_a_new_store_gets_at_once(
    tmp_path: Path, install: Installations
) -> None:
    migrated = _new(tmp_path)
    done = migrated.run("migrate", "--verbosity", "0")
    assert done.returncode == 0, done.stderr
    with closing(_store(install())) as at_once, closing(_store(migrated)) as step_by_step:
        assert _schema(at_once) == _schema(step_by_step)


def test_an_older_store_is_copied_before_it_is_migrated(install: Installations) -> None:
    installation = install()
    with closing(_store(installation)) as store:
        store.execute("DELETE FROM django_migrations WHERE app = 'guardian' AND name LIKE '0003%'")
        store.commit()
    done = installation.run("first_run")
    assert "written by an older version" in done.stdout, done.stderr
    (copy,) = (installation.data_dir / "backups").iterdir()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as store:
        assert store.execute("SELECT count(*) FROM auth_user").fetchone() == (1,)


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_nobody_but_up_migrates_an_older_store(install: Installations, command: str) -> None:
    installation = install()
    with closing(_store(installation)) as store:
        store.execute("DELETE FROM django_migrations WHERE app = 'guardian' AND name LIKE '0003%'")
        store.commit()
    done = installation.run(command)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "ochat: the store must be migrated first: run manage.py migrate (migration_required).\n"
    )


def test_the_store_of_a_newer_version_is_one_line(install: Installations) -> None:
    installation = install()
    with closing(_store(installation)) as store:
        store.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('sessions_app', '9999_later', '2100-01-01')"
        )
        store.commit()
    done = installation.run("first_run")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "ochat: the store was written by a newer version of this server (store_schema_too_new).\n"
    )


def test_an_unreachable_database_is_one_line(tmp_path: Path) -> None:
    done = _new(tmp_path, OCHAT_DATABASE_URL="postgresql://127.0.0.1:1/ochat").run("first_run")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ochat: OCHAT_DATABASE_URL: cannot reach the database.\n"


def _schema(store: sqlite3.Connection) -> dict[str, set[str]]:
    """Every table and index, as its set of columns and constraints: their order means nothing."""
    rows = store.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: _parts(sql) for name, sql in rows}


def _parts(sql: str) -> set[str]:
    head, _, body = sql.partition("(")
    parts, depth = [""], 0
    for character in body:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0 and head.startswith("CREATE TABLE"):
            parts.append("")
        else:
            parts[-1] += character
    return {head, *(part.strip().removesuffix(")") for part in parts)}
