"""Permission requests: opened by the gate, answered by a person, by time or by the end of the operation
(behaviour 7.2, 7.3).

Owns: every state of a request, the observed state that shows it, and what an answer does to the waiting call.
Does not own: whether a call must ask (`decisions.py`), or starting the approved call
(`sessions_app.commands.calls`).

A waiting request is a row: it holds no worker, no connection and no timer, and survives every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, cast

import msgspec
import structlog
from msgspec import UNSET

from permissions_app import grants, reasons
from permissions_app.models import PermissionRequest
from sessions_app import ids, ledger, records, rows, store
from sessions_app.callers import system
from sessions_app.clock import wire_time
from sessions_app.commands import calls
from sessions_app.errors import AlreadyResolved, Conflict, Interrupted, InvalidRequest, Refusal
from sessions_app.limits import MAX_SNAPSHOT_ITEMS

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from permissions_app.grants import Digests
    from sessions_app.ledger import Txn
    from sessions_app.models import Operation, Session, ToolCall
    from sessions_app.participants import OperationOutcome
    from sessions_app.receipts import Call
    from sessions_app.records import PermissionChoice, PermissionState
    from sessions_app.runtime.ports import Tier

log = structlog.get_logger(__name__)

Fallback = Literal["allow", "deny"]

EFFECTS = ("tool_invocation",)
TIMED_OUT = "timed out"
_PENDING = rows.Select(
    PermissionRequest, "session_id = %s AND state = 'pending'", order="created_at, tool_call_id"
)
"""Asked at the end of every operation."""
_ALL_CHOICES: tuple[PermissionChoice, ...] = (
    "approve_once",
    "approve_session",
    "approve_prefix",
    "durable_exact",
    "deny",
)


@dataclass(frozen=True, slots=True)
class Question:
    """What the gate wants to ask about a call."""

    tier: Tier
    digests: Digests
    fallback: Fallback
    """What expiry means."""
    timeout_ms: int | None
    """None: it waits for ever."""

    @property
    def choices(self) -> tuple[PermissionChoice, ...]:
        """What may be answered (behaviour 7.2)."""
        if self.tier == "hard_stop":
            return ("approve_once", "deny")
        if self.tier == "execute":
            # The tool is a shell or the like: every payload would be every command.
            return tuple(choice for choice in _ALL_CHOICES if choice != "approve_prefix")
        return _ALL_CHOICES


def open_request(txn: Txn, operation: Operation, call: ToolCall, question: Question) -> PermissionRequest:
    """Open the request about a call: `permission.requested`, and the state that shows it unless an older
    one does.
    """
    expires_at = None
    if question.timeout_ms is not None:
        expires_at = txn.now + timedelta(milliseconds=question.timeout_ms)
    request = PermissionRequest(
        id=ids.new_id("per"),
        session=txn.session,
        generation=txn.session.generation,
        operation=operation,
        tool_call=call,
        call_id=call.call_id,
        tool_name=call.name,
        runtime_identity=question.digests.exact,
        tier=question.tier,
        choices=question.choices,
        fallback=question.fallback,
        created_at=txn.now,
        expires_at=expires_at,
    )
    request.save(force_insert=True)
    txn.emit("permission.requested", request_record(request))
    if txn.session.observed != "waiting_for_permission":
        txn.set_state(observed="waiting_for_permission", waiting_on=request.id)
    return request


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """An answered request, as the mutation left the session."""

    permission: records.Permission
    revision: int
    latest_event_sequence: int


def respond(
    call: Call,
    session_id: str,
    permission_id: str,
    *,
    generation: int,
    choice: PermissionChoice,
    reason: str = "",
) -> Resolved:
    """Answer a request; the first answer that commits wins.

    Raises, beside what `ledger.command` raises and in this order: InvalidRequest for an unknown request,
    Conflict for another generation, AlreadyResolved when it is not pending or its time is over,
    InvalidRequest for a choice that was not offered, ResourceLimit for a reason that is too long, Interrupted
    when the operation no longer waits on the call (behaviour 7.3).
    """

    too_late = False

    def body(txn: Txn) -> Resolved:
        nonlocal too_late
        request = PermissionRequest.objects.filter(pk=permission_id, session=txn.session).first()
        if request is None:
            raise InvalidRequest("no such permission request in this session")
        if request.generation != generation:
            raise Conflict("the request is of another generation")
        too_late = request.state == "pending" and _is_due(request, txn.now)
        if request.state != "pending" or too_late:
            raise AlreadyResolved("the request is resolved already")
        if choice not in request.choices:
            raise InvalidRequest("this choice was not offered")
        principal_id = txn.caller.principal_id or ""
        if not _settle(txn, request, choice, reason=reasons.kept(reason), principal_id=principal_id):
            raise Interrupted("the operation is no longer waiting on this call")
        return Resolved(
            permission=request_record(request),
            revision=txn.session.revision,
            latest_event_sequence=txn.session.latest_sequence,
        )

    try:
        return ledger.command(call, session_id, Resolved, body)
    except AlreadyResolved:
        if too_late:
            # A refused body is rolled back, so what it found to be due is applied here, before the answer leaves.
            expire(session_id, permission_id)
        raise


def expire(session_id: str, permission_id: str) -> bool:
    """Apply the fallback of a request whose time is over; return whether that was done here and now."""
    with ledger.session_txn(session_id, system("permission.expiry")) as txn:
        request = PermissionRequest.objects.filter(pk=permission_id, state="pending").first()
        if request is None or not _is_due(request, txn.now):
            return False
        choice: PermissionChoice = "approve_once" if request.fallback == "allow" else "deny"
        return _settle(txn, request, choice, reason=TIMED_OUT)


def expire_due(now: datetime, limit: int = 64) -> int:
    """Expire at most `limit` requests that are due at `now`, oldest first; return how many were. For the
    sweep.

    A session that cannot be changed just now keeps its request for the next round and does not stop the
    others.
    """
    with store.errors():
        due = _timed().filter(expires_at__lte=now)
        found = list(due.values_list("session_id", "pk")[:limit])
    expired = 0
    for session_id, permission_id in found:
        try:
            expired += expire(session_id, permission_id)
        except Refusal as refusal:
            log.warning("permission.expiry_failed", session_id=session_id, code=refusal.code)
    return expired


def next_due() -> datetime | None:
    """Return when the next pending request expires; None when none does."""
    return _timed().values_list("expires_at", flat=True).first()


def _timed() -> QuerySet[PermissionRequest]:
    """Return the pending requests that expire, the next first; those of an operation being cancelled end with it."""
    timed = PermissionRequest.objects.filter(state="pending", expires_at__isnull=False)
    return timed.exclude(operation__state="cancelling").order_by("expires_at")


def cancel_requests(txn: Txn, operation: Operation, outcome: OperationOutcome) -> None:
    """Close what an ended operation left pending, after its terminal events (behaviour 6.5, step 5)."""
    for request in _pending(txn.session):
        if request.operation_id == operation.id:
            _close(request, "cancelled", "deny", txn.now, f"operation {outcome}")
            txn.emit("permission.resolved", request_record(request))


def list_requests(
    session: Session, *, state: PermissionState | None = None, after: str = "", limit: int
) -> list[records.Permission]:
    """Return the requests of a session behind id `after`: one more than `limit` when there are more."""
    wanted = PermissionRequest.objects.filter(session=session, pk__gt=after).order_by("pk")
    if state is not None:
        wanted = wanted.filter(state=state)
    with store.errors():
        return [request_record(row) for row in wanted[: limit + 1]]


def newest(session: Session) -> list[records.Permission]:
    """Return what a snapshot shows: pending requests, then finished ones, each newest first, at most 256."""
    pending = _NEWEST_PENDING.all(session.id, at_most=MAX_SNAPSHOT_ITEMS)
    rest = _NEWEST_OVER.all(session.id, at_most=MAX_SNAPSHOT_ITEMS - len(pending))
    return [request_record(row) for row in (*pending, *rest)]


_NEWEST_FIRST = "created_at DESC, id DESC"
_NEWEST_PENDING = rows.Select(PermissionRequest, "session_id = %s AND state = 'pending'", order=_NEWEST_FIRST)
_NEWEST_OVER = rows.Select(PermissionRequest, "session_id = %s AND state <> 'pending'", order=_NEWEST_FIRST)


def clear(session: Session) -> None:
    """Remove the requests of a session that is reset or rebuilt; none is pending then."""
    PermissionRequest.objects.filter(session=session).delete()


def request_record(request: PermissionRequest) -> records.Permission:
    """Return a request as the protocol says it; of what is asked only the tool's name is shown."""
    return records.Permission(
        id=request.id,
        session_id=request.session_id,
        generation=request.generation,
        operation_id=request.operation_id,
        call_id=request.call_id,
        tool_name=request.tool_name,
        runtime_identity=request.runtime_identity,
        invocation_display=f"{request.tool_name}(<redacted>)",
        rationale=request.rationale or UNSET,
        effects=EFFECTS,
        choices=cast("tuple[PermissionChoice, ...]", request.choices),
        created_at=wire_time(request.created_at),
        expires_at=wire_time(request.expires_at) if request.expires_at else UNSET,
        state=cast("PermissionState", request.state),
        resolution=_resolution(request),
    )


def _resolution(request: PermissionRequest) -> records.PermissionResolution | msgspec.UnsetType:
    if request.resolved_at is None:
        return UNSET
    return records.PermissionResolution(
        choice=cast("PermissionChoice", request.choice),
        principal_id=request.resolved_by or UNSET,
        resolved_at=wire_time(request.resolved_at),
        reason=request.reason or UNSET,
    )


def _is_due(request: PermissionRequest, now: datetime) -> bool:
    return request.expires_at is not None and request.expires_at <= now


def _pending(session: Session) -> list[PermissionRequest]:
    """Return the open requests of a session, in the order in which they were opened."""
    return _PENDING.all(session.id)


def _settle(
    txn: Txn, request: PermissionRequest, choice: PermissionChoice, *, reason: str, principal_id: str = ""
) -> bool:
    """Resolve a pending request and let its call go on; False when the operation no longer waits on the call.

    Events: `permission.resolved`, the state when it changes, `grant.created` for a remembering choice.
    """
    operation = txn.operation
    if operation is None or operation.id != request.operation_id or operation.state == "cancelling":
        return False
    allowed = choice != "deny"
    if not calls.answer(txn, operation, request.call_id, allowed=allowed, output=_denial(reason)):
        return False
    _close(request, "approved" if allowed else "denied", choice, txn.now, reason, principal_id)
    txn.emit("permission.resolved", request_record(request))
    _show_oldest(txn)
    if choice in grants.SCOPE_OF:
        prefix = choice == "approve_prefix"
        digest = grants.prefix_digest(request.tool_name) if prefix else request.runtime_identity
        grants.create_grant(txn, choice, request.tool_name, digest, principal_id)
    return True


def _denial(reason: str) -> str:
    """Return what the model reads as the output of a denied call (behaviour 6.7)."""
    said = "The call was not run: permission was denied."
    return f"{said} Reason: {reason}" if reason else said


def _close(
    request: PermissionRequest,
    state: PermissionState,
    choice: PermissionChoice,
    now: datetime,
    reason: str,
    principal_id: str = "",
) -> None:
    request.state, request.choice, request.reason = state, choice, reason
    request.resolved_at, request.resolved_by = now, principal_id
    request.save(update_fields=["state", "choice", "reason", "resolved_at", "resolved_by"])


def _show_oldest(txn: Txn) -> None:
    """Wait on the oldest request that is still pending, or go on; `session.state_changed` only when that
    is a change.
    """
    pending = _pending(txn.session)
    if not pending:
        txn.set_state(observed="running_turn")
    elif pending[0].id != txn.session.waiting_on:
        txn.set_state(observed="waiting_for_permission", waiting_on=pending[0].id)
