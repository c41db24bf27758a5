"""Fixture F0 of the conformance scenarios: the catalog, the people and their tokens.

Owns: what every site of this suite is configured with, written as an operator writes it. Does not own: the processes that
serve it (`sites`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import get_args

from sessions_app import catalog
from sessions_app.records import Scope

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "prompts"

ALL: Sequence[Scope] = get_args(Scope)


@dataclass(frozen=True)
class Person:
    """A principal with a token."""

    name: str
    scopes: Sequence[Scope]
    principal: str
    expires_at: str = "none"

    @property
    def token(self) -> str:
        """The bearer token."""
        return f"token-of-{self.name}"

    @property
    def entry(self) -> str:
        """The token as the catalog file lists it."""
        scopes = ", ".join(f'"{scope}"' for scope in self.scopes)
        return (
            "[[tokens]]\n"
            f'token_sha256 = "{sha256(self.token.encode()).hexdigest()}"\n'
            f'principal_id = "{self.principal}"\n'
            f"scopes = [{scopes}]\n"
            f'expires_at = "{self.expires_at}"\n'
        )


ADMIN = Person("admin", ALL, "pri_one")
PUBLIC = Person("public", (), "pri_two")
READER = Person("reader", ("session.transcript.read",), "pri_one")
WRITER = Person("writer", ("session.transcript.read", "session.message.send"), "pri_one")
STRANGER = Person("stranger", [scope for scope in ALL if scope != "configuration.admin"], "pri_two")
"""May do everything, but sees only what is its own."""
SECOND_ADMIN = Person("second-admin", ALL, "pri_three")
THIRD_ADMIN = Person("third-admin", ALL, "pri_four")
EXPIRED = Person("expired", ALL, "pri_one", expires_at="2000-01-01T00:00:00Z")

PEOPLE = (ADMIN, PUBLIC, READER, WRITER, STRANGER, SECOND_ADMIN, THIRD_ADMIN, EXPIRED)

PROXIES = ("127.0.0.1", "127.0.0.2")
"""Peers that assert who asks; whoever asserts nothing is asked for a token like anybody."""

SETTINGS: Mapping[str, int] = {
    "max_events_per_session": 1000,
    "subscriber_queue_capacity": 16,
    "max_attachments_per_session": 16,
    "idle_connection_timeout_ms": 5000,
    "max_connections": 32,
    "process_heartbeat_ms": 250,
    "process_expiry_ms": 2000,
    "sweep_lease_ms": 1000,
    "misfire_gap_ms": 1000,
    "shutdown_grace_ms": 5000,
}
"""What the fixture asks for, and processes whose death is noticed within the time of a test."""

MODEL = "openai-responses:gpt-5"
PROMPT = '<config model="{model}"/>\n{tools}<developer>{text}</developer>\n'

PROFILES: Mapping[str, str] = {
    "unattended": 'tool_default = "deny"',
    "open": 'tool_default = "allow"',
    "interactive": 'tool_default = "ask"\napproval_timeout_ms = "none"\napproval_fallback = "deny"',
    "patient": 'tool_default = "ask"\napproval_timeout_ms = "none"\nunattended = "wait"',
    "brief-deny": 'tool_default = "ask"\napproval_timeout_ms = 50\napproval_fallback = "deny"',
    "brief-allow": 'tool_default = "ask"\napproval_timeout_ms = 50\napproval_fallback = "allow"',
    "brief-policy": 'tool_default = "ask"\napproval_timeout_ms = 50\napproval_fallback = "allow_if_policy"',
}
"""Permission profiles by name; each but the first has a prompt of the same name with one tool."""

SMOKE = "smoke"
CODING = "coding"
"""The example of that name, as it is shipped."""
BROKEN = "broken"
"""A prompt that cannot be used: it names a tool that no server has."""
EDITABLE = "editable"
"""A prompt that scenarios may edit and remove, and must write again."""
PHYSICAL = "physical"
ELSEWHERE = "elsewhere"
"""A workspace that no prompt may use."""
QUEUEING, REJECTING = "queueing", "rejecting"
"""Workspaces that take one session of the smoke prompt: the next one waits, or is refused."""
SHARING, EXCLUSIVE = "sharing", "exclusive"
"""Two workspaces of one conflict domain."""
WORKSPACES: Mapping[str, Sequence[str]] = {
    PHYSICAL: ['access = "shared_write"'],
    ELSEWHERE: ['access = "shared_write"'],
    QUEUEING: [
        'access = "shared_write"',
        f'prompt_limits = [{{ prompt = "{SMOKE}", max_root_agents = 1, overflow = "queue" }}]',
    ],
    REJECTING: [
        'access = "shared_write"',
        f'prompt_limits = [{{ prompt = "{SMOKE}", max_root_agents = 1, overflow = "reject" }}]',
    ],
    SHARING: ['access = "shared_write"', 'conflict_domain = "fixture"'],
    EXCLUSIVE: ['access = "exclusive"', 'conflict_domain = "fixture"'],
}
"""What each workspace says beside its folder, which has its name."""


def catalog_text(folder: Path, settings: Mapping[str, int] = SETTINGS) -> str:
    """Return the catalog file of an installation whose workspaces are below `folder`."""
    parts = ["version = 1", "[server]", *(f"{name} = {value}" for name, value in settings.items())]
    for name, keys in WORKSPACES.items():
        parts += [
            "[[workspaces]]",
            f'id = "{name}"',
            f'source = {{ physical = "{folder / name}" }}',
            *keys,
        ]
    allowed = ", ".join(f'"{name}"' for name in WORKSPACES if name != ELSEWHERE)
    for name, profile in PROFILES.items():
        parts += ["[[permission_profiles]]", f'id = "{name}"', profile]
    prompts = {name: "unattended" for name in (SMOKE, CODING, BROKEN, EDITABLE)} | {
        name: name for name in PROFILES
    }
    for name, profile in prompts.items():
        parts += [
            "[[prompts]]",
            f'id = "{name}"',
            f'path = "prompts/{name}.chatmd"',
            f"allowed_workspaces = [{allowed}]",
            f'permission_profile = "{profile}"',
        ]
    parts += ["[[trusted_proxies]]", f"trusted_addresses = [{', '.join(map(repr, PROXIES))}]"]
    return "\n".join([*parts, *(person.entry for person in PEOPLE)])


def write(data_dir: Path, settings: Mapping[str, int] = SETTINGS) -> None:
    """Write catalog, prompts and workspaces into a data folder."""
    for name in WORKSPACES:
        (data_dir / name).mkdir(parents=True, exist_ok=True)
    shutil.copytree(EXAMPLES, data_dir / "prompts", dirs_exist_ok=True)
    write_prompt(data_dir, SMOKE, "Be brief.")
    write_prompt(data_dir, EDITABLE, "Say A.")
    write_prompt(data_dir, BROKEN, "Be brief.", '<tool name="teleport"/>\n')
    for name in PROFILES:
        write_prompt(data_dir, name, "Use the clock.", '<tool name="clock"/>\n')
    (data_dir / "ochat.toml").write_text(catalog_text(data_dir, settings), encoding="utf-8")


def write_prompt(data_dir: Path, name: str, text: str, tools: str = "", model: str = MODEL) -> None:
    """Write the source of a prompt."""
    source = PROMPT.format(model=model, tools=tools, text=text)
    (data_dir / "prompts" / f"{name}.chatmd").write_text(source, encoding="utf-8")


def prompt(name: str) -> str:
    """Return the id of a prompt."""
    return catalog.prompt_id(name)


def workspace(name: str) -> str:
    """Return the id of a workspace."""
    return catalog.workspace_id(name)
