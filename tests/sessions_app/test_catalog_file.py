"""The catalog file (design 6, behaviour 2.3, 2.4, 3)."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.catalog_file import (
    MAX_CATALOG_BYTES,
    CatalogError,
    CatalogFile,
    TemporarySource,
    WorkspaceSource,
    parse_catalog,
    read_catalog,
)
from sessions_app.limits import JobLimits, ServerSettings

DIGEST = "aB" * 32

WHOLE = f"""version = 1
default_prompt = "coding"
default_workspace = "project"
models = ["openai:gpt-5", "demo"]

[server]
max_events_per_session = 1000
shutdown_grace_ms = 5000
job_limits = {{ daemon = 2, depth = 0 }}

[[workspaces]]
id = "project"
source = {{ physical = "/srv/project" }}
access = "shared_write"
conflict_domain = "project"
prompt_limits = [{{ prompt = "coding", max_root_agents = 4, overflow = "queue" }}]

[[workspaces]]
id = "scratch"
source = {{ temporary = {{ location = "session_dir", cleanup = "on_session_delete" }} }}
access = "exclusive"

[[permission_profiles]]
id = "interactive"
tool_default = "ask"
approval_timeout_ms = 0
approval_fallback = "allow_if_policy"
unattended = "wait"
manifest_authorization = "deny"
max_mode = "dangerous"
sandbox = false
network = "host"
allow_unsandboxed = true
project_instructions = true
max_steps = 10
max_cost_usd = 1.5
max_minutes = 30
policy = ["tool.tier == 'read'"]

[[prompts]]
id = "coding"
path = "prompts/coding.chatmd"
description = "Writes code."
enabled = false
allowed_workspaces = ["project", "scratch"]
permission_profile = "interactive"
runtime_policy = "strict"

[[tokens]]
token_sha256 = "{DIGEST}"
principal_id = "pri_reader"
scopes = ["session.transcript.read"]
attributes = {{ team = "a" }}
expires_at = "2030-01-01T00:00:00Z"

[[manifest_grants]]
id = "first"
prompt = "coding"
workspaces = ["project"]
source_sha256 = "{DIGEST}"
manifest_sha256 = "{DIGEST}"
principals = ["pri_reader"]

[[trusted_proxies]]
trusted_addresses = ["127.0.0.1", "::1"]
principal_header = "x-user"
"""


def refusal(text: str) -> CatalogError:
    with pytest.raises(CatalogError) as caught:
        parse_catalog(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value) == f"line {caught.value.line}: {caught.value.message}"
    return caught.value


def changed(old: str, new: str) -> CatalogError:
    """Return the refusal of the whole catalog with one line replaced; it must name that line."""
    assert WHOLE.count(old) == 1
    error = refusal(WHOLE.replace(old, new))
    assert error.line == WHOLE[: WHOLE.index(old)].count("\n") + 1
    return error


def test_every_key_is_read() -> None:
    catalog = parse_catalog(WHOLE)
    assert (catalog.default_prompt, catalog.default_workspace) == ("coding", "project")
    assert catalog.models == ("openai:gpt-5", "demo")
    assert catalog.server == ServerSettings(
        max_events_per_session=1000, shutdown_grace_ms=5000, job_limits=JobLimits(daemon=2, depth=0)
    )
    project, scratch = catalog.workspaces
    assert project.source == WorkspaceSource(physical="/srv/project")
    assert project.prompt_limits[0].max_root_agents == 4
    assert scratch.source == WorkspaceSource(
        temporary=TemporarySource(location="session_dir", cleanup="on_session_delete")
    )
    (profile,) = catalog.permission_profiles
    assert (profile.approval_timeout_ms, profile.max_mode, profile.max_minutes) == (0, "dangerous", 30)
    (prompt,) = catalog.prompts
    assert (prompt.path, prompt.enabled) == ("prompts/coding.chatmd", False)
    (token,) = catalog.tokens
    assert token.expires_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert token.attributes == {"team": "a"}
    (proxy,) = catalog.trusted_proxies
    assert (proxy.principal_header, proxy.scopes_header) == ("x-user", "x-ochat-scopes")
    assert catalog.manifest_grants[0].principals == ("pri_reader",)


def test_only_the_version_is_needed() -> None:
    assert parse_catalog("version = 1\n") == CatalogFile(version=1)
    assert refusal("").message == "the catalog lacks the key version"


@pytest.mark.parametrize("setting", msgspec.structs.fields(ServerSettings), ids=lambda setting: setting.name)
def test_every_setting_is_read_by_its_name(setting: msgspec.structs.FieldInfo) -> None:
    if setting.name == "job_limits":
        value = "{ session = 2 }"
    elif isinstance(setting.default, bool):
        value = str(not setting.default).lower()
    else:
        value = str(setting.default + 1)
    server = parse_catalog(f"version = 1\n[server]\n{setting.name} = {value}").server
    assert getattr(server, setting.name) != setting.default


@pytest.mark.parametrize(
    "key", ["journal_flush_ms", "segment_bytes", "mailbox_size", "snapshot_every_events"]
)
def test_settings_of_another_store_are_refused_by_name(key: str) -> None:
    error = refusal(f"version = 1\n[server]\n\n{key} = 1")
    assert error.line == 4
    assert error.message == f"server has no key {key}: every commit is durable before its answer leaves"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1\n", "version = 2\n", "version: invalid enum value 2"),
        ('models = ["openai:gpt-5", "demo"]', 'model = "x"', "the catalog has no key model"),
        ("max_events_per_session = 1000", "max_events = 1", "server has no key max_events"),
        ("max_events_per_session = 1000", 'max_events_per_session = "1"', "max_events_per_session: expected int, got str"),
        ("max_events_per_session = 1000", "max_events_per_session = 0", "max_events_per_session: expected int >= 1"),
        ("shutdown_grace_ms = 5000", "process_expiry_ms = 5000", "process_expiry_ms must be longer than process_heartbeat_ms"),
        ("job_limits = { daemon = 2, depth = 0 }", "job_limits = { demon = 2 }", "job_limits has no key demon"),
        ('source = { physical = "/srv/project" }', "source = {}", "source: needs exactly one of physical and temporary"),
        ('source = { physical = "/srv/project" }', 'source = { phys = "x" }', "source has no key phys"),
        ('access = "shared_write"', 'access = "shared"', "access: invalid enum value 'shared'"),
        ('cleanup = "on_session_delete"', 'clean = "x"', "temporary has no key clean"),
        (', cleanup = "on_session_delete"', "", "temporary lacks the key cleanup"),
        ("max_root_agents = 4", "max_root_agents = 0", "max_root_agents: expected int >= 1"),
        ('{ prompt = "coding", max', '{ prompt = "other", max', "there is no prompt other"),
        ('id = "scratch"', 'id = "project"', "workspaces has project twice"),
        ('id = "scratch"', 'id = "two words"', "id: not of the right form"),
        ('tool_default = "ask"', 'tool_default = "maybe"', "tool_default: invalid enum value 'maybe'"),
        ("approval_timeout_ms = 0", "approval_timeout_ms = -1", "approval_timeout_ms: expected int >= 0"),
        ("max_cost_usd = 1.5", "max_cost_usd = 0", "max_cost_usd: expected float > 0.0"),
        ('path = "prompts/coding.chatmd"', "path = 1", "path: expected str, got int"),
        ('path = "prompts/coding.chatmd"', r'path = "\u0000"', "path: not of the right form"),
        ('["project", "scratch"]', '["project", "attic"]', "there is no workspace attic"),
        ('permission_profile = "interactive"', 'permission_profile = "none"', "there is no permission profile none"),
        ('default_prompt = "coding"', 'default_prompt = "chat"', "there is no prompt chat"),
        ('default_workspace = "project"', 'default_workspace = "attic"', "there is no workspace attic"),
        (f'token_sha256 = "{DIGEST}"', 'token_sha256 = "abc"', "token_sha256: not of the right form"),
        ('principal_id = "pri_reader"', 'principal_id = "reader"', "principal_id: not of the right form"),
        ('["session.transcript.read"]', '["session.read"]', "scopes: invalid enum value 'session.read'"),
        ('{ team = "a" }', "{ team = 1 }", "attributes: expected str, got int"),
        ('"2030-01-01T00:00:00Z"', '"soon"', "expires_at: invalid RFC3339 encoded datetime"),
        ('"2030-01-01T00:00:00Z"', "2030-01-01T00:00:00", "expires_at: expected datetime with a timezone component"),
        ('workspaces = ["project"]', 'workspaces = ["attic"]', "there is no workspace attic"),
        ('["127.0.0.1", "::1"]', "[]", "trusted_addresses: expected array of length >= 1"),
        ('principal_header = "x-user"', 'principal_header = "x user"', "principal_header: not of the right form"),
        ("max_steps = 10", "max_steps = 10, 11", "expected newline or end of document after a statement"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, message: str) -> None:
    assert changed(old, new).message.startswith(message)


def test_entries_lack_keys_at_their_header() -> None:
    error = refusal(WHOLE.replace('permission_profile = "interactive"\n', ""))
    assert error.message == "prompts lacks the key permission_profile"
    assert error.line == WHOLE[: WHOLE.index("[[prompts]]")].count("\n") + 1


def test_scopes_of_a_token_differ() -> None:
    error = refusal(WHOLE.replace('["session.transcript.read"]', '["audit.read", "audit.read"]'))
    assert error.message == "tokens: names a scope twice"


def test_a_workspace_limits_a_prompt_once() -> None:
    limit = '{ prompt = "coding", max_root_agents = 4, overflow = "queue" }'
    error = changed(f"prompt_limits = [{limit}]", f"prompt_limits = [{limit}, {limit}]")
    assert error.message == "prompt_limits names a prompt twice"


@pytest.mark.parametrize("written", ['"none"', "2030-01-01T00:00:00Z", '"2030-01-01T01:00:00+01:00"'])
def test_an_expiry_is_none_a_string_or_a_toml_time(written: str) -> None:
    (token,) = parse_catalog(WHOLE.replace('"2030-01-01T00:00:00Z"', written)).tokens
    assert token.expires_at == (None if "none" in written else datetime(2030, 1, 1, tzinfo=UTC))


def test_no_timeout_is_a_word() -> None:
    (profile,) = parse_catalog(
        WHOLE.replace("approval_timeout_ms = 0", 'approval_timeout_ms = "none"')
    ).permission_profiles
    assert profile.approval_timeout_ms == "none"


def test_text_that_is_no_toml_names_its_line() -> None:
    assert refusal("version = 1\nx").line == 2
    assert refusal('version = 1\nx = """\n\n').line == 4
    assert refusal("version = " + "1" * 5000).message == "a number has too many digits"
    assert refusal("x = " + "[" * 100_000).message == "arrays and tables are nested too deeply"


def test_files_are_read_within_bounds(tmp_path: Path) -> None:
    file = tmp_path / "ochat.toml"
    with pytest.raises(CatalogError, match="the file cannot be read: No such file or directory"):
        read_catalog(file)
    file.write_bytes(b"version = 1\n# \xff")
    with pytest.raises(CatalogError, match="line 2: the file is not UTF-8 text"):
        read_catalog(file)
    file.write_bytes(b"#" * (MAX_CATALOG_BYTES + 1))
    with pytest.raises(CatalogError, match="the file is larger than"):
        read_catalog(file)
    file.write_text(WHOLE)
    assert read_catalog(file) == parse_catalog(WHOLE)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.data())
def test_whatever_stands_in_a_value_gives_a_catalog_or_an_error(data: st.DataObject) -> None:
    lines = WHOLE.split("\n")
    position = data.draw(st.sampled_from([at for at, line in enumerate(lines) if " = " in line]))
    key = lines[position].partition(" = ")[0]
    lines[position] = f"{key} = {_toml(data.draw(VALUES))}"
    text = "\n".join(lines)
    with suppress(CatalogError):
        parse_catalog(text)


def _toml(value: object) -> str:
    """Write a value as TOML, or as something close to it (`null`)."""
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return msgspec.json.encode(value).decode()
