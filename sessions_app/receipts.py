"""Idempotency: exactly one outcome per key (behaviour 11).

Owns: what identifies a keyed call, how its outcome is stored, replayed and refused. Does not own: when that happens in a
command (`ledger.command`, `ledger.spanning`), or the digest of the params, which the dialect takes over their canonical form.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from hmac import compare_digest
from typing import TYPE_CHECKING, TypeVar

import msgspec
from django.db import IntegrityError

from sessions_app import clock, processes, rows
from sessions_app.encoding import encode
from sessions_app.errors import (
    CommandQueueFull,
    IdempotencyConflict,
    InternalError,
    Interrupted,
    PersistenceError,
    Refusal,
    ServerShuttingDown,
    StoreLocked,
    from_error,
    to_error,
)
from sessions_app.models import Receipt
from sessions_app.records import Error

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sessions_app.callers import Caller

T = TypeVar("T", bound=msgspec.Struct)

STANDARD_LIFETIME = timedelta(hours=24)
"""Fixed by the protocol; a standard receipt past it replays until maintenance prunes it (behaviour 11.5)."""

_NO_OUTCOME = (ServerShuttingDown, StoreLocked, CommandQueueFull, PersistenceError, InternalError)
"""Failures for want of the process or the store: nothing is stored and the key may be used again (behaviour 11.3)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a mutating method: who, which, and by which key."""

    caller: Caller
    method: str
    key: str | None = None
    """None for callers without idempotency keys: the server itself, operators, keyless dialect calls."""
    digest: bytes = b""
    """SHA-256 over the canonical params (behaviour 11.2)."""
    protected: bool = False
    """Never pruned by age (behaviour 11.1)."""
    draining: bool = False
    """The process is shutting down and the method is new work."""

    @property
    def refused_by_draining(self) -> bool:
        """Whether step 7 of the order of checks refuses this call (behaviour 1.1)."""
        return self.draining


class Pending(Exception):
    """Another call with this key is at work in a live process: ask again shortly, holding nothing meanwhile."""


def is_outcome(refusal: Refusal) -> bool:
    """Tell whether a refusal is an answer to keep, rather than a failure for want of the process or the store."""
    return not isinstance(refusal, _NO_OUTCOME)


def replay(call: Call, session_id: str, result: type[T]) -> T | Refusal | None:
    """Return the stored outcome of a call's key, or None when the key is new.

    Raises IdempotencyConflict for other params under the same key, Pending while somebody works on it, Interrupted when the
    process that did is gone, or could not settle it.
    """
    if call.key is None:
        return None
    receipt = _row(call, session_id)
    if receipt is None:
        return None
    if not compare_digest(bytes(receipt.digest), call.digest):
        raise IdempotencyConflict("this idempotency key was used with other parameters")
    if receipt.state == "pending":
        if _is_worked_on(receipt):
            raise Pending(call.method)
        raise Interrupted("nobody works on this call any more; its outcome is unknown")
    if receipt.state == "refusal":
        return from_error(msgspec.json.decode(receipt.outcome or b"", type=Error))
    return msgspec.json.decode(receipt.outcome or b"", type=result)


def insert(call: Call, session_id: str, outcome: msgspec.Struct | Refusal) -> None:
    """Store the outcome of a call that has just run, in its transaction.

    Raises Pending when a concurrent duplicate has settled first: this transaction is then rolled back, and asking again gives
    the other's outcome.
    """
    _insert(call, session_id, outcome)


def open_pending(call: Call, session_id: str) -> None:
    """Leave a pending receipt of this process. Raises Pending when a concurrent duplicate has just left one.

    Whoever leaves one calls `put_down` in the end, whatever became of the work.
    """
    _insert(call, session_id, None)
    _worked_on.add(_key(call, session_id))


def put_down(call: Call, session_id: str) -> None:
    """Say that this process no longer works on a call: a receipt that is still pending then was left by a failing store."""
    _worked_on.discard(_key(call, session_id))


_worked_on: set[tuple[str, str, str, str]] = set()
"""The calls that this process works on outside a transaction."""


def _key(call: Call, session_id: str) -> tuple[str, str, str, str]:
    return call.caller.principal_id or "", session_id, call.method, call.key or ""


def _is_worked_on(receipt: Receipt) -> bool:
    if processes.is_current(receipt.process_id):
        return (receipt.principal_id, receipt.session_id, receipt.method, receipt.key) in _worked_on
    return processes.is_alive(receipt.process_id)


def _insert(call: Call, session_id: str, outcome: msgspec.Struct | Refusal | None) -> None:
    if call.key is None:
        return
    try:
        rows.insert([_new(call, session_id, outcome)])
    except IntegrityError:
        raise Pending(call.method) from None


def settle_pending(call: Call, session_id: str, outcome: msgspec.Struct | Refusal) -> None:
    """Turn a pending receipt into its outcome, in the transaction that the outcome acknowledges.

    Raises Interrupted when the receipt is no longer this process's to settle: somebody was told so already.
    """
    if call.key is None:
        return
    settled = _rows(call, session_id).update(state=_state(outcome), outcome=_encoded(outcome), process_id="")
    if settled != 1:
        raise Interrupted("the receipt of this call is gone")


def drop_pending(call: Call, session_id: str) -> None:
    """Forget a pending receipt whose call has no outcome."""
    if call.key is not None:
        _rows(call, session_id).delete()


def _rows(call: Call, session_id: str) -> QuerySet[Receipt]:
    return Receipt.objects.filter(
        principal_id=call.caller.principal_id or "",
        session_id=session_id,
        method=call.method,
        key=call.key,
        state="pending",
        process_id=processes.current_id(),
    )


_RECEIPT = rows.Select(Receipt, "principal_id = %s AND session_id = %s AND method = %s AND key = %s")


def _row(call: Call, session_id: str) -> Receipt | None:
    return _RECEIPT.first(call.caller.principal_id or "", session_id, call.method, call.key)


def _new(call: Call, session_id: str, outcome: msgspec.Struct | Refusal | None) -> Receipt:
    now = clock.now()
    return Receipt(
        principal_id=call.caller.principal_id or "",
        session_id=session_id,
        method=call.method,
        key=call.key or "",
        digest=call.digest,
        state="pending" if outcome is None else _state(outcome),
        outcome=None if outcome is None else _encoded(outcome),
        process_id=processes.current_id() if outcome is None else "",
        created_at=now,
        expires_at=None if call.protected else now + STANDARD_LIFETIME,
    )


def _state(outcome: msgspec.Struct | Refusal) -> str:
    return "refusal" if isinstance(outcome, Refusal) else "success"


def _encoded(outcome: msgspec.Struct | Refusal) -> bytes:
    return encode(to_error(outcome) if isinstance(outcome, Refusal) else outcome)
