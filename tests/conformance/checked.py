"""Every frame a server sends, held against what a producer may write and against what holds in every scenario.

Owns: the schema check of each frame, and the laws of one connection's stream: each call answered once, sequences contiguous
behind the answer of an attach, revisions that never fall, live events in order with the log, nothing that the connection's
scopes hide. Does not own: frames on a wire (the inner transport), or what one scenario expects.

A frame that breaks a law is written into `problems`, which whoever owns the connection must find empty at the end, and ends the
reading: a client must not go on with it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from ochat_client.transports import Transport
from sessions_app.limits import MAX_FRAME_BYTES
from tests.golden.contract import flaw_of

TERMINAL_KINDS = frozenset(
    {"operation.completed", "operation.failed", "operation.cancelled", "operation.interrupted"}
)


class BrokenLaw(AssertionError):
    """The server sent what it must not."""


class Checked:
    """A transport under watch; see `ochat_client.transports.Transport`."""

    def __init__(self, inner: Transport, problems: list[str]) -> None:
        self.transport = inner
        self._problems = problems
        self._asked: dict[str, str] = {}
        self._stream = _Stream()
        self.received: list[Any] = []
        """Every message that came, decoded."""

    async def send(self, frame: bytes) -> None:
        """Send a frame, and remember the method of a call."""
        self._note(frame)
        await self.transport.send(frame)

    async def receive(self) -> bytes:
        """Return the next frame. Raises BrokenLaw for one that may not be sent."""
        frame = await self.transport.receive()
        try:
            self._take(frame)
        except BrokenLaw as broken:
            self._problems.append(str(broken))
            raise
        return frame

    async def close(self) -> None:
        """End the connection."""
        await self.transport.close()

    def _note(self, frame: bytes) -> None:
        try:
            call = json.loads(frame)
            self._asked[json.dumps(call["id"])] = call["method"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return  # No call that can be answered by name: hostile frames are sent through here too.

    def _take(self, frame: bytes) -> None:
        if len(frame) > MAX_FRAME_BYTES:
            raise BrokenLaw(f"a frame of {len(frame)} bytes")
        message = _decoded(frame)
        self.received.append(message)
        if "id" not in message:
            self._notified(frame, message)
            return
        method = self._asked.pop(json.dumps(message["id"]), None)
        if "error" in message:
            _check("ErrorEnvelope", frame, message)
        elif method is None:
            raise BrokenLaw(f"an answer that nobody waits for: {message}")
        else:
            _check(f"{method}.response", frame, message)
            self._stream.answered(method, message["result"])

    def _notified(self, frame: bytes, message: Any) -> None:
        match message.get("method"):
            case "session.event":
                _check("SessionEventNotification", frame, message)
                self._stream.durable(message["params"])
            case "session.live_event":
                _check("SessionLiveEventNotification", frame, message)
                self._stream.live(message["params"])
            case other:
                raise BrokenLaw(f"a notification that no server sends: {other}")


class _Stream:
    """What one connection has been told, over all its attachments."""

    def __init__(self) -> None:
        self._sees_security = True
        self._attached: dict[str, str] = {}
        self._cursors: defaultdict[str, list[int]] = defaultdict(list)
        self._revisions: defaultdict[str, int] = defaultdict(int)
        self._ended: set[str] = set()
        self._live: defaultdict[str, int] = defaultdict(int)
        self._doubled: set[str] = set()
        """Sessions with more than one attachment so far: events come once for each."""

    def answered(self, method: str, result: Any) -> None:
        match method:
            case "protocol.initialize":
                self._sees_security = "security.read" in result["principal"]["scopes"]
            case "session.attach":
                self._open(result)
            case "session.create" if "attachment" in result:
                self._open(result["attachment"])

    def durable(self, event: Any) -> None:
        session_id, sequence = event["session_id"], event["sequence"]
        cursors = self._cursors[session_id]
        if sequence - 1 not in cursors:
            raise BrokenLaw(f"event {sequence} came where one behind {cursors} was due")
        cursors[cursors.index(sequence - 1)] = sequence
        doubled = session_id in self._doubled
        if not doubled and event["revision"] < self._revisions[session_id]:
            raise BrokenLaw(f"revision {event['revision']} came after {self._revisions[session_id]}")
        self._revisions[session_id] = max(event["revision"], self._revisions[session_id])
        if not self._sees_security and "visibility" not in event:
            raise BrokenLaw(f"a full event for a reader without security.read: {event['kind']}")
        if event["kind"] in TERMINAL_KINDS:
            self._ended.add(event["payload"]["id"])

    def live(self, event: Any) -> None:
        session_id, operation_id = event["session_id"], event["operation_id"]
        number, anchor = event["operation_sequence"], event["anchor_sequence"]
        if not self._sees_security:
            raise BrokenLaw("a live event for a reader without security.read")
        if anchor > max(self._cursors[session_id], default=-1):
            raise BrokenLaw(f"a live event came before its anchor {anchor}")
        if operation_id in self._ended and session_id not in self._doubled:
            raise BrokenLaw(f"a live event came behind the end of {operation_id}")
        newest = self._live[operation_id]
        if number < newest or (number == newest and session_id not in self._doubled):
            raise BrokenLaw(f"live event {number} came after {newest}")
        self._live[operation_id] = number

    def _open(self, result: Any) -> None:
        attachment, latest = result["attachment"], result["latest_event_sequence"]
        session_id = attachment["session_id"]
        replay = result["replay"]
        if replay["type"] == "snapshot" and replay["snapshot"]["latest_event_sequence"] != latest:
            raise BrokenLaw("a snapshot and its answer stand at different sequences")
        if replay["type"] == "events":
            sequences = [event["sequence"] for event in replay["events"]]
            if sequences != list(range(latest - len(sequences) + 1, latest + 1)):
                raise BrokenLaw(f"a replay of {sequences} up to {latest}")
        if self._cursors[session_id] and attachment["id"] not in self._attached:
            self._doubled.add(session_id)
        self._attached[attachment["id"]] = session_id
        self._cursors[session_id].append(latest)


def _decoded(frame: bytes) -> Any:
    try:
        message = json.loads(frame.decode("utf-8", "strict"), object_pairs_hook=_unique)
    except ValueError as error:
        raise BrokenLaw(f"a frame that is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise BrokenLaw("a frame that is no object")
    return message


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise BrokenLaw(f"a member twice among {[name for name, _ in pairs]}")
    return members


def _check(definition: str, frame: bytes, message: Any) -> None:
    flaw = flaw_of(definition, frame, message)
    if flaw is not None:
        raise BrokenLaw(flaw)
