"""The audit log: what was done or refused, by whom, in a chain that shows tampering (behaviour 15).

Owns: the records, their sequence and hashes, reading and verifying them. Does not own: the batch in which a
process gathers what no transaction of its own writes (`audit_batch.py`), nor when the sweep calls `chain` and
`settle_failures`.

A mutation inserts its record, unchained, in its own transaction: nothing waits for a global lock. Sequence
and digest are given afterwards, in order of insertion, by one chainer at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, cast, get_args

import msgspec
from django.db import transaction
from django.db.models import F, Q, Value
from django.db.models.functions import Substr

from permissions_app.models import AuditChain, AuditRecord, AuthFailure
from sessions_app import clock, records, rows, store
from sessions_app.callers import Operator
from sessions_app.encoding import encode
from sessions_app.records import AuditLevel, ErrorCode

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sessions_app.callers import Caller
    from sessions_app.participants import CommandOutcome

CHAIN_BATCH = 500
"""Records chained in one transaction: a few milliseconds of the store's lock."""
FAILURE_WINDOW = timedelta(minutes=1)
"""There is at most one `auth.failed` record per source in it."""
_LEVELS: tuple[AuditLevel, ...] = get_args(AuditLevel)
"""From the least to the most serious."""


def command_record(caller: Caller, outcome: CommandOutcome, at: datetime) -> AuditRecord:
    """Return the record of a command that passed scope and initialization; an operator's holds the
    operator's name.
    """
    succeeded = outcome.code == "success"
    if outcome.command.startswith("operator."):
        name, payload = outcome.command, {"command": outcome.command.removeprefix("operator.")}
    else:
        name = "protocol.command.succeeded" if succeeded else "protocol.command.failed"
        payload = {"method": outcome.command}
    payload["outcome"] = outcome.code
    if isinstance(caller.access, Operator):
        payload["operator"] = caller.access.name
    return _record(
        name,
        at,
        payload,
        serious=not succeeded,
        session_id=outcome.session_id,
        principal_id=caller.principal_id,
    )


def denied_record(principal_id: str, method: str, code: ErrorCode, at: datetime) -> AuditRecord:
    """Return the record of a call that lacked the scope, or came before initialization."""
    payload = {"method": method, "outcome": code}
    return _record("protocol.command.denied", at, payload, serious=True, principal_id=principal_id)


def record_operator(by: Caller, command: str, session_id: str | None = None) -> None:
    """Insert the record `operator.<command>` of a change that has no method, in the transaction of that
    change.
    """
    from_name = by.access.name if isinstance(by.access, Operator) else ""
    payload = {"command": command, "outcome": "success", "operator": from_name}
    _record(
        f"operator.{command}",
        clock.now(),
        payload,
        serious=False,
        session_id=session_id,
        principal_id=by.principal_id,
    ).save(force_insert=True)


def record_reload(diff: msgspec.Struct | dict[str, object]) -> None:
    """Insert the record of a catalog reload, in the transaction that swaps the catalog."""
    _record("server.configuration.reloaded", clock.now(), diff, serious=False).save(force_insert=True)


def _record(
    name: str,
    at: datetime,
    payload: object,
    *,
    serious: bool,
    session_id: str | None = None,
    principal_id: str | None = None,
) -> AuditRecord:
    return AuditRecord(
        at=at,
        level="warning" if serious else "info",
        name=name,
        session_id=session_id or "",
        principal_id=principal_id or "",
        payload=encode(payload),
    )


def write(gathered: Iterable[AuditRecord], failures: Iterable[tuple[str, int]] = ()) -> None:
    """Store what a process gathered: finished records, and how many authentications failed of which
    source.
    """
    with store.errors(), transaction.atomic():
        AuditRecord.objects.bulk_create(gathered)
        for source, count in failures:
            _count_failures(source, count)


def _count_failures(source: str, count: int) -> None:
    counted = AuthFailure.objects.filter(source=source).update(count=F("count") + count)
    if not counted:
        row, made = AuthFailure.objects.get_or_create(
            source=source, defaults={"count": count, "since": clock.now()}
        )
        if not made:
            # Another process was faster between the two statements.
            AuthFailure.objects.filter(source=row.source).update(count=F("count") + count)


def settle_failures(*, early: bool = False) -> None:
    """Write the `auth.failed` record of every source whose minute is over, and forget sources that were quiet
    for one.

    `early` also writes those whose first minute still runs, for a reader who asks now; what fails in the rest
    of such a minute is kept for the record after it. Safe when two processes do it at once.
    """
    now = clock.now()
    over = Q(since__lte=now - FAILURE_WINDOW)
    with store.errors():
        # Asked first, because an idle server must not take the store's lock at every pass of the sweep.
        if not AuthFailure.objects.exists():
            return
    with store.errors(), transaction.atomic():
        AuthFailure.objects.filter(over, count=0).delete()
        due = AuthFailure.objects.filter(over | Q(recorded=False) if early else over, count__gt=0)
        due_rows = list(due.select_for_update().order_by("source"))
        AuditRecord.objects.bulk_create(
            _record("auth.failed", now, {"source": row.source, "count": row.count}, serious=True)
            for row in due_rows
        )
        due.filter(source__in=[row.source for row in due_rows]).update(count=0, since=now, recorded=True)


def chain(limit: int = CHAIN_BATCH) -> int:
    """Give sequence and digest to at most `limit` records that wait for them, in order; return how many.

    Any number of processes may call it at once: the lock of the chain's one row makes them take turns.
    """
    with store.errors():
        # As above.
        if not AuditRecord.objects.filter(sequence=None).exists():
            return 0
    with store.errors(), transaction.atomic():
        AuditChain.objects.get_or_create(id=1)
        end = AuditChain.objects.select_for_update().get()
        waiting = list(AuditRecord.objects.filter(sequence=None).order_by("id")[:limit])
        digest = bytes(end.head_digest)
        for sequence, record in enumerate(waiting, end.head_sequence + 1):
            digest = _link(digest, sequence, record)
            record.sequence, record.digest = sequence, digest
        if waiting:
            rows.update_all(waiting, ["sequence", "digest"])
            end.head_sequence += len(waiting)
            end.head_digest = digest
            end.save(update_fields=["head_sequence", "head_digest"])
    return len(waiting)


def chain_waiting() -> None:
    """Chain all that waits, counted failures included; for readers."""
    settle_failures(early=True)
    while chain() == CHAIN_BATCH:
        pass


def oldest_waiting() -> datetime | None:
    """Return since when the oldest unchained record waits; None when none does."""
    return AuditRecord.objects.filter(sequence=None).order_by("id").values_list("at", flat=True).first()


def _link(before: bytes, sequence: int, record: AuditRecord) -> bytes:
    """Return the digest of a record in the chain: over the digest before it and everything it says."""
    who = (record.session_id, record.principal_id)
    said = (sequence, clock.wire_time(record.at), record.level, record.name, *who)
    return hashlib.sha256(before + encode(said) + record.payload).digest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found: how many records stand in the chain, and the first sequence that does not."""

    count: int
    broken_at: int | None = None
    reason: Literal["", "missing", "altered", "cut off"] = ""


def verify() -> Verdict:
    """Recompute the chain from its anchor to its head and return whether every record is there, in place and
    unaltered.

    Call `chain_waiting` first to cover what is newest.
    """
    with store.errors():
        end = AuditChain.objects.filter(id=1).first() or AuditChain()
        digest, sequence = bytes(end.anchor_digest), end.anchor_sequence
        chained = AuditRecord.objects.filter(sequence__gt=sequence, sequence__lte=end.head_sequence).order_by(
            "sequence"
        )
        count = 0
        for record in chained.iterator(chunk_size=CHAIN_BATCH):
            sequence += 1
            if record.sequence != sequence:
                return Verdict(count, sequence, "missing")
            digest = _link(digest, sequence, record)
            if digest != record.digest:
                return Verdict(count, sequence, "altered")
            count += 1
        if (sequence, digest) != (end.head_sequence, bytes(end.head_digest)):
            return Verdict(count, sequence + 1, "cut off")
    return Verdict(count)


def cut(by: Caller, before: datetime) -> int:
    """Remove the oldest part of the log, up to the first chained record that is not older than `before`; return how many.

    The digest of the last one removed stays as the anchor of the chain, so that what is left can be verified. Audited as
    `operator.audit.cut`. Call `chain_waiting` first to reach what is newest.
    """
    with store.errors(), transaction.atomic():
        AuditChain.objects.get_or_create(id=1)
        chain = AuditChain.objects.select_for_update().get()
        chained = AuditRecord.objects.filter(sequence__isnull=False).order_by("sequence")
        kept = chained.filter(at__gte=before).first()
        older = chained if kept is None else chained.filter(sequence__lt=kept.sequence)
        last = older.last()
        if last is None or last.sequence is None or last.digest is None:
            return 0
        chain.anchor_sequence, chain.anchor_digest = last.sequence, last.digest
        chain.save(update_fields=["anchor_sequence", "anchor_digest"])
        count, _ = older.delete()
        record_operator(by, "audit.cut")
    return count


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records a reader wants; all conditions must hold."""

    session_id: str | None = None
    principal_id: str | None = None
    minimum_level: AuditLevel = "info"
    name_prefix: str = ""


def read_page(wanted: Filter, after: int, limit: int) -> list[records.AuditRecord]:
    """Return the chained records with a sequence above `after`, oldest first: one more than `limit` when
    there are more.

    The caller flushes its process's batch and calls `chain_waiting` first, on the first page. Every session
    is covered: the scope `audit.read` is not limited to visible ones.
    """
    if "\0" in wanted.name_prefix:
        # No name has one, and PostgreSQL takes none in a question.
        return []
    wanted_rows: QuerySet[AuditRecord] = AuditRecord.objects.filter(sequence__gt=after).order_by("sequence")
    if wanted.session_id is not None:
        wanted_rows = wanted_rows.filter(session_id=wanted.session_id)
    if wanted.principal_id is not None:
        wanted_rows = wanted_rows.filter(principal_id=wanted.principal_id)
    if wanted.name_prefix:
        # Not `startswith`: SQLite's LIKE ignores case.
        head = Substr("name", 1, len(wanted.name_prefix))
        wanted_rows = wanted_rows.alias(head=head).filter(head=Value(wanted.name_prefix))
    with store.errors():
        found = [row for part in _parts(wanted_rows, wanted) for row in part[: limit + 1]]
    found.sort(key=_sequence_of)
    return [_to_wire(row) for row in found[: limit + 1]]


def _parts(wanted_rows: QuerySet[AuditRecord], wanted: Filter) -> list[QuerySet[AuditRecord]]:
    """Split a reading into parts, each of which an index has in order: one for each serious level, or for each rare name.

    Else the few records that are wanted would be looked for among the many that are not. Records of one session or principal
    are few, and most records are of the common name.
    """
    levels = _LEVELS[_LEVELS.index(wanted.minimum_level) :]
    if levels != _LEVELS:
        return [wanted_rows.filter(level=level) for level in levels]
    of_one = wanted.session_id is not None or wanted.principal_id is not None
    if of_one or _COMMON.startswith(wanted.name_prefix):
        return [wanted_rows]
    return [wanted_rows.filter(name=name) for name in _names(wanted.name_prefix)]


_COMMON = "protocol.command.succeeded"


def _names(prefix: str) -> list[str]:
    """Return the names that begin with `prefix`: there are few names, each found by one step in their index."""
    chained = AuditRecord.objects.filter(sequence__isnull=False).order_by("name", "sequence")
    found: list[str] = []
    name = chained.values_list("name", flat=True).first()
    while name is not None:
        found.append(name)
        name = chained.filter(name__gt=name).values_list("name", flat=True).first()
    return [name for name in found if name.startswith(prefix)]


def _sequence_of(row: AuditRecord) -> int:
    return row.sequence or 0


def _to_wire(row: AuditRecord) -> records.AuditRecord:
    return records.AuditRecord(
        sequence=row.sequence or 0,
        timestamp=clock.wire_time(row.at),
        level=cast("AuditLevel", row.level),
        name=row.name,
        session_id=row.session_id or msgspec.UNSET,
        principal_id=row.principal_id or msgspec.UNSET,
        payload=msgspec.Raw(row.payload),
        redacted=True,
    )
