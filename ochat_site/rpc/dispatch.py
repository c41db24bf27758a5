"""From a frame to its answer: the order of the checks, and the one boundary between refusals and the wire.

Owns: behaviour 1.1 for the Ochat dialect, where a handler runs, waiting for a duplicate of a keyed call, what of a
failure a client is told, the audit of what writes no record itself. Does not own: the table (`methods`), the handlers,
receipts and the writer check (`sessions_app.ledger`, inside the command), connections and their order (`connection`).

Nothing that a client sends and nothing that a handler raises leaves `handle` or `answer` as an exception.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, ParamSpec, TypeVar

import structlog
from msgspec import Raw, Struct

from ochat_site.dialects.ochat1 import codec
from ochat_site.dialects.ochat1.errors import to_error
from ochat_site.rpc import envelope
from ochat_site.rpc.context import Context, reading
from ochat_site.rpc.envelope import Malformed, Notification, Request
from ochat_site.rpc.methods import METHODS
from permissions_app.scopes import caller_for
from sessions_app import limits
from sessions_app.callers import Attached, Connected
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.errors import (
    IncompatibleProtocol,
    InternalError,
    MethodNotFound,
    PermissionDenied,
    Refusal,
    ResourceLimit,
)
from sessions_app.participants import CommandOutcome
from sessions_app.receipts import Call, Pending

if TYPE_CHECKING:
    from ochat_site.rpc.context import Client, Method, Server
    from ochat_site.rpc.envelope import Message
    from permissions_app.audit_batch import AuditBatch
    from sessions_app.callers import Access
    from sessions_app.records import ErrorCode

P = ParamSpec("P")
T = TypeVar("T")

logger = structlog.get_logger(__name__)

DIALECT: Final = "ochat1"

INLINE_BYTES: Final = 64 * limits.KIB
"""What is longer is decoded in a thread. So much takes 0.3 ms as text, and 8 ms as nothing but the smallest objects, during
which nobody else is served.
"""

PENDING_SECONDS: Final = 0.05
"""How long a duplicate waits, holding neither thread nor connection, before it asks for the outcome again. It ends
with the outcome, or with the process that has the work (behaviour 11.3).
"""


class _Work(NamedTuple):
    """A call whose method is known and whose params are read."""

    row: Method
    params: Any
    """A struct of the row's type; Any, because its members are only known to the row."""
    context: Context


class Dispatcher:
    """Answers the calls of every Ochat connection of a process."""

    def __init__(
        self, server: Server, audit: AuditBatch, methods: Mapping[tuple[str, str], Method] = METHODS
    ) -> None:
        """Speak for `server`, and gather in `audit` what no transaction of a call records."""
        self._server = server
        self._audit = audit
        self._methods = methods

    async def handle(self, client: Client, frame: bytes) -> bytes | None:
        """Return the frame that answers one message; None where nothing may be answered: a notification, or something
        that is no call and names no id.
        """
        try:
            call = expected(await off_loop(len(frame), envelope.decode, frame))
        except Refusal as refusal:
            if isinstance(refusal, Malformed) and refusal.id is not None:
                return envelope.failure(refusal.id, to_error(refusal))
            logger.info("rpc.unreadable", connection_id=client.connection_id, reason=refusal.message)
        except Exception:
            logger.exception("rpc.unreadable", connection_id=client.connection_id)
        else:
            return await self.answer(client, call)
        return None

    async def answer(self, client: Client, call: Request | Notification) -> bytes | None:
        """Return the frame that answers a call which `expected` lets through; None for a notification."""
        id = call.id if isinstance(call, Request) else None
        try:
            work = await self._work(client, call)
            self._admit(work)
            return await self._run(work, id)
        except Refusal as raised:
            refusal = raised
        except Exception:
            logger.exception("rpc.failed", connection_id=client.connection_id, method=call.method)
            refusal = InternalError("the server failed")
        return None if id is None else envelope.failure(id, to_error(refusal))

    async def _work(self, client: Client, call: Request | Notification) -> _Work:
        """Find the method and read the params."""
        row = self._methods.get((DIALECT, call.method))
        if row is None:
            raise MethodNotFound("no such method")
        params, digest = await off_loop(memoryview(call.params).nbytes, _read, row, call)
        identity = client.identity
        command = Call(
            caller=caller_for(identity, _access(row, client, params)),
            method=row.name,
            key=None if row.idempotency == "none" else params.idempotency_key,
            digest=digest,
            protected=row.idempotency == "protected",
            draining=row.new_work and self._server.draining,
        )
        context = Context(
            server=self._server, client=client, identity=identity, call=command, audit=self._audit
        )
        return _Work(row, params, context)

    def _admit(self, work: _Work) -> None:
        """Check the scopes, then that the connection is initialized."""
        row, params, context = work
        try:
            for scope in row.scopes(params):
                if scope not in context.caller.scopes:
                    raise PermissionDenied(f"missing scope {scope}")
            if not (context.client.initialized or row.opens):
                raise IncompatibleProtocol("the connection is not initialized")
        except Refusal as refusal:
            self._audit.denied(context.identity.principal.id, row.name, refusal.code)
            raise

    async def _run(self, work: _Work, id: bytes | None) -> bytes | None:
        """Run the handler where it belongs, and what it wants done in the loop; return the encoded answer."""
        try:
            frame = await self._outcome(work, id)
        except Refusal as refusal:
            if not refusal.recorded:
                self._record(work, refusal.code)
            raise
        except Exception:
            self._record(work, "internal_error")
            raise
        for effect in work.context.effects:
            effect()
        if work.row.runs != "command":
            self._record(work, "success")
        return frame

    async def _outcome(self, work: _Work, id: bytes | None) -> bytes | None:
        if work.row.runs == "loop":
            return _handled(work, id)
        while True:
            try:
                return await in_db(_handled, work, id)
            except Pending:
                await asyncio.sleep(PENDING_SECONDS)

    def _record(self, work: _Work, code: ErrorCode | Literal["success"]) -> None:
        session_id = getattr(work.params, "session_id", None) or None  # a filter may be left out
        self._audit.command(work.context.caller, CommandOutcome(work.row.name, session_id, code))


def expected(message: Message) -> Request | Notification:
    """Return a message that a server takes. Raises Malformed, without an id, for any other: it is never answered."""
    match message:
        case Request() | Notification(method="protocol.ping"):
            return message
    raise Malformed("only calls are taken, and of notifications only protocol.ping")


def fingerprint(params: Struct) -> bytes:
    """Return the SHA-256 over the canonical JSON of decoded params: every object sorted by key, free JSON too; numbers
    in it as they were written (behaviour 11.2).
    """
    return sha256(encode(_read_canonical(encode(params).decode()))).digest()


def _number(token: str) -> Raw:
    return Raw(token.encode())


_read_canonical = json.JSONDecoder(parse_int=_number, parse_float=_number).decode


def _read(row: Method, call: Request | Notification) -> tuple[Any, bytes]:
    params = codec.decode(call.params, row.params, unique=call.unique)
    return params, b"" if row.idempotency == "none" else fingerprint(params)


def _access(row: Method, client: Client, params: Any) -> Access:
    if row.attachment == "none":
        return Connected(client.connection_id, logical=client.logical)
    return Attached(client.connection_id, params.attachment_id, writes=row.attachment == "writable")


def _handled(work: _Work, id: bytes | None) -> bytes | None:
    """Run the handler and encode its answer: everything of a call that may take time, in one go."""
    row, params, context = work
    with reading() if row.runs == "snapshot" else nullcontext():
        result = row.handler(context, params)
    if id is None:
        return None
    frame = envelope.success(id, result)
    if len(frame) > limits.MAX_FRAME_BYTES:
        raise ResourceLimit("the answer exceeds 16 MiB", retryable=False)
    return frame


async def off_loop(size: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that decodes `size` bytes, in a thread of its own if they are many; return what it returns."""
    if size <= INLINE_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
