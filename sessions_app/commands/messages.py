"""Messages to a session: admission, disposition, cancellation (behaviour 6.1, 6.2, 6.6).

Owns: the checks of `session.send_message` in their order, and whether a message starts a turn or waits. Does not own: the
ChatMD language (`chatmd`), blobs (`blobs`), or how an operation lives (`commands.operations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sessions_app import blobs, history, ledger, limits
from sessions_app.chatmd.lexer import ChatMDError
from sessions_app.chatmd.message import HelperRefused, user_item
from sessions_app.commands import entries, operations
from sessions_app.errors import InvalidRequest, InvalidState, PermissionDenied
from sessions_app.ids import history_id
from sessions_app.records import MessageContent, MessageDisposition, Session
from sessions_app.summaries import session_record

if TYPE_CHECKING:
    from sessions_app import models
    from sessions_app.blobs import Staged
    from sessions_app.history import NewEntry
    from sessions_app.ledger import Txn
    from sessions_app.receipts import Call


BLANK = " \t\n\v\f\r"
"""The characters that alone are no text, as the codec of the protocol has them (`records.NonBlankText`)."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message."""

    history_id: str
    disposition: MessageDisposition
    operation_id: str | None
    revision: int
    latest_event_sequence: int


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A session after a mutation."""

    session: Session
    revision: int
    latest_event_sequence: int


def changed(txn: Txn) -> Changed:
    """Return the session as this transaction leaves it."""
    return Changed(
        session=session_record(txn.session),
        revision=txn.session.revision,
        latest_event_sequence=txn.session.latest_sequence,
    )


def send_message(call: Call, session_id: str, content: MessageContent) -> Sent:
    """Accept a message: it starts a turn in an idle session and is deferred behind a running operation (behaviour 6.2).

    Raises, in this order: InvalidRequest for blank text; InvalidState when halted, failed, or (retryable) not loaded; what an
    attachment that cannot be read is refused with; InvalidState for ChatMD that has no user element or does not parse; what
    an attachment of somebody or something else is refused with; ResourceLimit for an entry above 4 MiB and
    (retryable) a full queue. Before them everything `ledger.command` refuses with.
    """
    if not (content.attachments or _brings_images(content)):
        return ledger.command(call, session_id, Sent, lambda txn: _send(txn, content, ()))
    return ledger.spanning(
        call,
        session_id,
        Sent,
        check=lambda session: check_accepts(session, content),
        prepare=lambda: _prepare(content),
        body=lambda txn, staged: _send(txn, content, staged),
    )


def _brings_images(content: MessageContent) -> bool:
    """Tell whether ChatMD may hold an image that goes into the storage."""
    text = content.text
    return content.kind == "chatmd" and len(text) > limits.MAX_INLINE_IMAGE_BYTES and "data:image/" in text


def _prepare(content: MessageContent) -> Sequence[Staged]:
    """Put into the storage what a message brings for it: attachments, and the images that are written out in its ChatMD."""
    staged = blobs.stage(content.attachments)
    if content.kind == "chatmd":
        blobs.save_images(_admit(content).payload)
    return staged


def cancel_operation(call: Call, session_id: str, operation_id: str) -> Changed:
    """Cancel the named operation (behaviour 6.6); where no worker holds it, it has ended when this returns.

    Raises Conflict when another operation is active and OperationNotFound when none is.
    """

    def cancel(txn: Txn) -> Changed:
        operations.cancel(txn, operation_id)
        return changed(txn)

    return ledger.command(call, session_id, Changed, cancel)


def _send(txn: Txn, content: MessageContent, staged: Sequence[Staged]) -> Sent:
    check_accepts(txn.session, content)
    entry = _admit(content)
    if staged:
        parts = blobs.adopt(txn, staged, room=limits.MAX_ENTRY_BYTES - entry.size)
        entry = history.with_parts(entry.payload, parts)
    if txn.session.observed != "idle":
        row = entries.defer(txn, entry, txn.caller)
        return _sent(txn, row.number, None)
    return _start_turn(txn, entry)


def check_accepts(session: models.Session, content: MessageContent) -> None:
    """Refuse what can be refused before the content is looked into: a blank text, a session that takes none (behaviour 4.6)."""
    if not content.text.strip(BLANK):
        raise InvalidRequest("the text of a message must not be blank")
    if session.halted:
        raise InvalidState("the session is halted")
    if session.observed == "failed" or session.failure is not None:
        raise InvalidState("the session has failed")
    if session.desired == "stopped" or session.observed in ("queued_for_slot", "starting"):
        raise InvalidState("the session is not running", retryable=True)


def _admit(content: MessageContent) -> NewEntry:
    """Turn the content of a message, but for what is attached, into the entry it becomes."""
    if content.kind == "plain_text":
        return history.user_message(content.text)
    try:
        return history.entry_of(bytes(user_item(content.text).payload))
    except HelperRefused as refused:
        # A helper is a call before the gate (behaviour 17.3), and the gate has no tool to run it with.
        raise PermissionDenied(str(refused)) from None
    except ChatMDError as error:
        raise InvalidState(f"the message is not valid ChatMD: {error}") from None


def _start_turn(txn: Txn, entry: NewEntry) -> Sent:
    waiting = entries.take_deferred(txn)
    rows = entries.append_and_tell(txn, [*waiting, entry])
    operation = operations.begin_turn(
        txn, "user_submit", origin="ochat", principal_id=txn.caller.principal_id or ""
    )
    return _sent(txn, rows[-1].number, operation.id)


def _sent(txn: Txn, number: int, operation_id: str | None) -> Sent:
    return Sent(
        history_id=history_id(txn.session.id, number),
        disposition="started" if operation_id else "deferred",
        operation_id=operation_id,
        revision=txn.session.revision,
        latest_event_sequence=txn.session.latest_sequence,
    )
