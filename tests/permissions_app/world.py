"""The people, tokens, sessions and turns that these tests are about, made of real rows and by real functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import connections

from permissions_app import tokens
from permissions_app.authentication import by_token
from permissions_app.decisions import PermissionGate
from permissions_app.models import SessionGroupShare, SessionUserShare
from permissions_app.principals import Identity, of_service, of_user, scope_permissions
from permissions_app.scopes import caller_for, command_line
from sessions_app import clock, ids, ledger
from sessions_app.callers import Attached, Caller, Connected, system
from sessions_app.commands import calls, operations
from sessions_app.commands.calls import Progress, Proposed
from sessions_app.commands.operations import Claim
from sessions_app.encoding import encode
from sessions_app.models import (
    Attachment,
    Connection,
    ProfileRevision,
    PromptDefinition,
    PromptRevision,
    Session,
    SessionEvent,
    ToolCall,
    WorkspaceDefinition,
)
from sessions_app.records import (
    AttachmentMode,
    LivenessDetached,
    PromptRefCatalog,
    Scope,
    SessionSpec,
    WorkspaceRequestConfigured,
)
from sessions_app.runtime.ports import Tier

WRITER: tuple[Scope, ...] = ("session.transcript.read", "session.message.send", "permission.respond")


def user(name: str, scopes: Iterable[Scope] = (), **options: Any) -> User:
    """Make a Django user who holds `scopes`."""
    made = User.objects.create_user(name, **options)
    made.user_permissions.set(scope_permissions().filter(codename__in=scopes))
    return made


def identity_of(person: User | str, scopes: Iterable[Scope]) -> Identity:
    """Return the identity of a new token for a user, or for the service of this name."""
    return by_token(token_of(person, scopes).plaintext.encode())


def token_of(person: User | str, scopes: Iterable[Scope], **options: Any) -> tokens.Issued:
    """Make a token for a user, or for the service of this name."""
    principal = of_service(person) if isinstance(person, str) else of_user(person)
    return tokens.create_token(command_line(), principal, scopes=scopes, source="command", **options)


def reader(identity: Identity) -> Caller:
    """Return an identity as a client that is connected, without an attachment."""
    return caller_for(identity, Connected("con_reader"))


def share(session: Session, level: str, with_whom: User | Group) -> None:
    """Share a session as guardian does."""
    if isinstance(with_whom, Group):
        SessionGroupShare.objects.assign_perm(level, with_whom, session)
    else:
        SessionUserShare.objects.assign_perm(level, with_whom, session)


def make_session(creator: str = "", *, state: str = "idle", **profile: Any) -> Session:
    """Make a session, idle or stopped, under a permission profile of these keys."""
    now = clock.now()
    content = encode(profile)
    kept, _ = ProfileRevision.objects.get_or_create(
        digest=f"{hash(content) % 2**64:064x}",
        defaults={"name": "profile", "content": content, "created_at": now},
    )
    revision, _ = PromptRevision.objects.get_or_create(
        id="prv_only",
        defaults={"manifest": b"{}", "config": b"{}", "tools": b"[]", "entries": b"[]", "created_at": now},
    )
    workspace, _ = WorkspaceDefinition.objects.get_or_create(
        id="wsd_only", defaults={"name": "only", "kind": "physical", "path": "/", "access": "shared_write"}
    )
    prompt, _ = PromptDefinition.objects.get_or_create(
        id="prd_only",
        defaults={"name": "only", "permission_profile": "profile", "current_revision": revision},
    )
    spec = SessionSpec(
        execution_host="daemon",
        prompt=PromptRefCatalog(prompt_id=prompt.id),
        workspace=WorkspaceRequestConfigured(workspace_id=workspace.id),
        liveness=LivenessDetached(),
        persistence="durable",
        start_immediately=state == "idle",
        labels={},
    )
    return Session.objects.create(
        id=ids.new_id("ses"),
        creator=creator,
        created_at=now,
        updated_at=now,
        spec=encode(spec),
        liveness="detached",
        prompt=prompt,
        prompt_revision=revision,
        profile=kept,
        workspace=workspace,
        desired="running" if state == "idle" else "stopped",
        observed=state,
    )


def attach(session: Session, identity: Identity, mode: AttachmentMode = "read_write") -> Caller:
    """Attach an identity to a session over a connection of its own and return it as that caller."""
    now = clock.now()
    connection = Connection.objects.create(
        id=ids.new_id("con"),
        transport="websocket",
        principal=encode(identity.principal),
        created_at=now,
        last_active_at=now,
    )
    attachment = Attachment.objects.create(
        id=ids.new_id("att"),
        session=session,
        connection=connection,
        principal_id=identity.principal.id,
        mode=mode,
        answers="permission.respond" in identity.principal.scopes,
        created_at=now,
    )
    return caller_for(identity, Attached(connection.id, attachment.id))


def begin(session: Session, origin: str = "ochat") -> Claim:
    """Begin a turn in an idle session and claim it for this process."""
    with ledger.session_txn(session.id, system("test")) as txn:
        operation = operations.begin_turn(txn, "user_submit", origin=origin)
    claim = operations.claim(session.id, operation.id)
    assert claim is not None
    return claim


def propose(claim: Claim, *named: str, tier: Tier = "edit", arguments: str = "{}") -> Progress:
    """Let the model ask for calls of tools of these names, and the gate decide them."""
    wanted = [
        Proposed(call_id=f"call_{index}", name=name, kind="function", arguments=arguments)
        for index, name in enumerate(named, ToolCall.objects.filter(operation=claim.operation_id).count())
    ]
    tiers = dict.fromkeys(named, tier)
    return calls.propose(claim, [], wanted, PermissionGate(), tiers, _started, live_sequence=0)


def resume(claim: Claim) -> Progress:
    """Let a worker take up a turn that was parked, and say which calls start."""
    again = operations.claim(claim.session_id, claim.operation_id)
    assert again is not None
    return calls.advance(again, [], _started, 0)


def _started(_call: ToolCall, _anchor: int) -> bytes:
    return b"{}"


def kinds(session: Session, after: int = 0) -> Sequence[str]:
    """Return the kinds of the session's events behind a sequence."""
    rows = SessionEvent.objects.filter(session=session, sequence__gt=after).order_by("sequence")
    return list(rows.values_list("kind", flat=True))


def call_states(session: Session) -> Sequence[str]:
    """Return the states of the session's calls in order."""
    return list(ToolCall.objects.filter(session=session).order_by("pk").values_list("state", flat=True))


def together(*work: Callable[[], object]) -> list[object]:
    """Run each in a thread with a connection of its own, all beginning at once; return their results in order."""
    barrier = threading.Barrier(len(work))

    def run(one: Callable[[], object]) -> object:
        try:
            barrier.wait(30)
            return one()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(work)) as threads:
        return list(threads.map(run, work))
