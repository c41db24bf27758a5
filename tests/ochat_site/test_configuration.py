"""The catalog with everything that the layers take from it, and `manage.py catalog` (design 6, behaviour 2.3, 3.1, 15)."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from django.core.management import CommandError, call_command

from ochat_site import configuration
from permissions_app.authentication import by_token
from permissions_app.models import AuditRecord, Token
from sessions_app import catalog, limits
from sessions_app.chatmd.elements import AgentTool, BuiltinTool
from sessions_app.errors import ConfigurationInvalid, Unauthenticated
from sessions_app.models import CatalogState
from tests.permissions_app import world
from tests.support.catalogs import CATALOG, SECOND_PROMPT, Catalog
from tests.support.processes import Installations

pytestmark = pytest.mark.django_db

SECRET = "known to the build server alone"


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    with limits.using(limits.server()):
        catalog.forget()
        yield
        catalog.forget()


@pytest.fixture
def written(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path)


def token_entry(secret: str) -> str:
    digest = sha256(secret.encode()).hexdigest()
    return f'\n[[tokens]]\ntoken_sha256 = "{digest}"\nprincipal_id = "pri_ci"\nscopes = ["prompt.list"]\n'


def reloads() -> list[dict[str, dict[str, dict[str, list[str]]]]]:
    rows = AuditRecord.objects.filter(name="server.configuration.reloaded").order_by("id")
    return [msgspec.json.decode(row.payload) for row in rows]


def run(*arguments: object) -> tuple[str, str]:
    """Run `manage.py catalog` and return what it wrote, and what it complained about."""
    out, err = StringIO(), StringIO()
    call_command("catalog", *map(str, arguments), stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_a_prompt_may_ask_for_the_tools_of_the_packs_alone() -> None:
    assert configuration.has_tool(BuiltinTool(name="clock"))
    assert not configuration.has_tool(BuiltinTool(name="time_machine"))
    assert not configuration.has_tool(AgentTool(name="clock", agent="clock.chatmd"))


def test_tokens_and_the_audit_record_come_with_the_swap(written: Catalog) -> None:
    written.write(CATALOG + token_entry(SECRET))
    catalog.load(configuration.source(written.file))
    assert by_token(SECRET.encode()).principal.id == "pri_ci"
    written.write(CATALOG + SECOND_PROMPT)
    catalog.load(configuration.source(written.file))

    with pytest.raises(Unauthenticated):
        by_token(SECRET.encode())
    first, second = reloads()
    assert first["tables"]["prompts"] == {"added": ["coding"]}
    assert set(second["tables"]) == {"prompts", "tokens"}
    assert second["tables"]["prompts"] == {"added": ["writing"]}
    assert SECRET not in str(first)


def test_a_token_that_cannot_be_taken_undoes_everything(written: Catalog) -> None:
    made_here = world.token_of("robot", ()).plaintext
    written.write(CATALOG + token_entry(SECRET) + token_entry(made_here))
    with pytest.raises(ConfigurationInvalid, match="lists a token that was made"):
        catalog.load(configuration.source(written.file))
    assert not CatalogState.objects.exists()
    assert not Token.objects.filter(source="file").exists()
    assert reloads() == []


def test_load_says_what_is_in_force(written: Catalog) -> None:
    out, err = run("load", written.file)
    assert out == "Version 1 is in force; changed: defaults, workspaces, permission_profiles, prompts.\n"
    assert err == ""
    assert run("load", written.file)[0] == "Version 1 is in force; changed: nothing.\n"
    written.write(CATALOG + "[server]\nmax_connections = 7\n")
    out, err = run("load", written.file)
    assert out == "Version 2 is in force; changed: server.\n"
    assert "from now on" in err


def test_load_takes_a_broken_prompt_and_says_so(written: Catalog) -> None:
    (written.folder / "prompts" / "coding.chatmd").write_text('<tool name="time_machine"/>')
    out, err = run("load", written.file)
    assert out.startswith("Version 1 is in force")
    assert err.startswith("ochat.toml: prompt coding: coding.chatmd")
    assert err.count("\n") == 1


@pytest.mark.parametrize("action", ["check", "load"])
def test_a_broken_file_is_one_line_with_its_number(written: Catalog, action: str) -> None:
    written.write("version = 1\nmodel = []\n")
    with pytest.raises(CommandError) as raised:
        run(action, written.file)
    assert (str(raised.value), raised.value.returncode) == (
        "ochat.toml: line 2: the catalog has no key model",
        1,
    )
    assert not CatalogState.objects.exists()


def test_check_has_a_line_for_every_part_that_is_not_available(
    written: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", written.file)[0].startswith("ochat.toml is a catalog")
    written.write(
        CATALOG
        + SECOND_PROMPT
        + '[[workspaces]]\nid = "lost"\nsource = { physical = "lost" }\naccess = "exclusive"\n'
    )
    for name in ("coding", "writing"):
        (written.folder / "prompts" / f"{name}.chatmd").unlink()
    with pytest.raises(SystemExit) as raised:
        call_command("catalog", "check", str(written.file))
    assert raised.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[0].split(": ")[1] for line in lines] == [
        "prompt coding",
        "prompt writing",
        "workspace lost",
    ]
    assert not CatalogState.objects.exists()


def test_a_start_loads_the_catalog_and_a_broken_one_stops_it(install: Installations) -> None:
    installation = install()
    loaded = installation.run("catalog", "load", str(installation.data_dir / "ochat.toml"))
    assert loaded.stdout == "Version 1 is in force; changed: nothing.\n", loaded.stderr
    with (installation.data_dir / "ochat.toml").open("a") as file:
        file.write("\n[[prompts]]\n")
        line = 1 + (installation.data_dir / "ochat.toml").read_text().count("\n")
    done = installation.run("first_run")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"ochat: ochat.toml: line {line + 1}: prompts lacks the key id")
    assert done.stderr.count("\n") == 1


def test_a_running_server_follows_the_file_and_a_signal(install: Installations) -> None:
    installation = install()
    installation.start_valkey()
    serve = installation.start_serve()
    file, prompt = installation.data_dir / "ochat.toml", installation.data_dir / "prompts" / "demo.chatmd"

    def in_force() -> tuple[int, str]:
        with closing(sqlite3.connect(installation.data_dir / "ochat.sqlite3")) as opened:
            row: tuple[int, str] = opened.execute(
                "SELECT version, error FROM sessions_app_catalogstate"
            ).fetchone()
            return row

    file.write_text(file.read_text().replace('"gpt-5"', '"gpt-6"'))
    serve.until(lambda: in_force() == (2, ""), "the changed file is in force")
    whole = file.read_text()
    file.write_text("model = []\n" + whole)
    serve.until(lambda: "line 1: the catalog has no key" in in_force()[1], "the broken file is refused")
    file.write_text(whole)
    serve.until(lambda: in_force() == (2, ""), "the mended file is what is in force")
    prompt.write_text(prompt.read_text() + "<user>More.</user>")
    os.kill(serve.pid, signal.SIGHUP)
    serve.until(lambda: in_force() == (3, ""), "the changed prompt is in force")
    assert serve.stop() == 0
