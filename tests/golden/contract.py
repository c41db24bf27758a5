"""The contract as data: examples, schema and methods of the Ochat protocol 1.0, read once.

Owns: strict schema validation (an integer is an integer literal), in the form that is read and in the form that a
producer writes, and reading an example with our own code. Does not own: any expectation about a single example.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from ochat_site.dialects.ochat1 import codec
from ochat_site.dialects.ochat1.types import SHAPES, MethodName
from ochat_site.rpc import envelope
from sessions_app.encoding import encode
from sessions_app.errors import InvalidRequest, Refusal
from sessions_app.events import DurableEvent, LiveEvent, SourcedStreamPayload, read_live_payload, read_payload
from sessions_app.records import (
    Error,
    ErrorCode,
    HistoryEntry,
    check_entry,
    check_stream_event,
    classify_item,
)

_DATA = Path(__file__).parent / "ochat-1.0"
SCHEMA: dict[str, Any] = json.loads((_DATA / "schema.json").read_text())
DEFS: dict[str, Any] = SCHEMA["$defs"]
METHODS: list[dict[str, Any]] = json.loads((_DATA / "methods.json").read_text())["methods"]


class Example(NamedTuple):
    """One row of the index."""

    file: str
    definition: str
    valid: bool
    refusal: ErrorCode | None
    detect: str | None
    """`json`, `schema` and `semantic` are refused when decoding; `state` by a server in the state described."""
    decode_only: bool

    @property
    def text(self) -> bytes:
        """The example itself."""
        return (_DATA / "examples" / self.file).read_bytes()


EXAMPLES = [
    Example(
        row["file"],
        row["def"],
        row["valid"],
        row["expected_error"],
        row.get("detect"),
        row.get("decode_only", False),
    )
    for row in json.loads((_DATA / "examples" / "index.json").read_text())
]

_INTEGERS = Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", lambda _checker, value: isinstance(value, int) and not isinstance(value, bool)
)


def _is_of_another_tag(schema: Any, instance: Any) -> bool:
    """Tell whether a constant member of an object rules a schema out, without looking at anything else."""
    if not isinstance(schema, dict) or not isinstance(instance, dict):
        return False
    if "$ref" in schema:
        return _is_of_another_tag(DEFS[schema["$ref"].rpartition("/")[2]], instance)
    return any(
        isinstance(member, dict)
        and "const" in member
        and name in instance
        and instance[name] != member["const"]
        for name, member in schema.get("properties", {}).items()
    )


def _one_of(validator: Any, choices: Any, instance: Any, schema: Any) -> Any:
    """Do as the library, which tries every choice in full, leaving out those of another tag."""
    left = [choice for choice in choices if not _is_of_another_tag(choice, instance)]
    return _LIBRARY["oneOf"](validator, left, instance, schema)


def _if(validator: Any, condition: Any, instance: Any, schema: Any) -> Any:
    """Do as the library, without trying in full what its tag says."""
    if "else" not in schema and _is_of_another_tag(condition, instance):
        return ()
    return _LIBRARY["if"](validator, condition, instance, schema)


_LIBRARY: Mapping[str, Any] = Draft202012Validator.VALIDATORS
_Strict: type[Validator] = extend(  # type: ignore[no-untyped-call]  # the stubs leave this function out
    Draft202012Validator, type_checker=_INTEGERS, validators={"oneOf": _one_of, "if": _if}
)


def _as_produced(node: Any) -> Any:
    """Turn a schema of what is read into one of what is written: no unlisted members, defaults present."""
    if isinstance(node, list):
        return [_as_produced(value) for value in node]
    if not isinstance(node, dict):
        return node
    node = {key: _as_produced(value) for key, value in node.items()}
    if node.get("x-open"):
        node["additionalProperties"] = False
    node["required"] = node.get("required", []) + node.get("x-encoder-required", [])
    return node


_PRODUCED_DEFS = {name: _as_produced(copy.deepcopy(node)) for name, node in DEFS.items()}


@cache
def reading(definition: str) -> Validator:
    """Return the validator of what is read as `definition`."""
    return _Strict({"$ref": f"#/$defs/{definition}", "$defs": DEFS})


@cache
def writing(definition: str) -> Validator:
    """Return the validator of what may be written as `definition`."""
    return _Strict({"$ref": f"#/$defs/{definition}", "$defs": _PRODUCED_DEFS})


def read(definition: str, text: bytes) -> bytes:
    """Read a message the way our code does and return it written again. Raises a Refusal or ValueError."""
    message = envelope.decode(text)
    method, _, direction = definition.rpartition(".")
    match message:
        case envelope.Request() if direction == "request":
            return _request(message, method)
        case envelope.Response(outcome=msgspec.Raw() as outcome) if direction == "response":
            result = codec.decode(outcome, _shapes(method).result, unique=message.unique)
            _check_entries(result)
            return envelope.success(message.id, result)
        case envelope.Notification(method="session.event") if definition == "SessionEventNotification":
            event = codec.decode(message.params, DurableEvent, unique=message.unique)
            return envelope.notification(message.method, encode(_event(event)))
        case envelope.Notification(method="session.live_event") if (
            definition == "SessionLiveEventNotification"
        ):
            live = codec.decode(message.params, LiveEvent, unique=message.unique)
            return envelope.notification(message.method, encode(_live_event(live)))
        case _ if definition in ("Envelope", "ErrorEnvelope"):
            return _any(message)
    raise InvalidRequest("another kind of message")


def flaw_of(definition: str, frame: bytes, message: Any) -> str | None:
    """Return what is wrong with a frame that a server sent, `message` when decoded; None when nothing is.

    Beside the schema of what is written: an entry fits its payload, a payload its kind, a replacement snapshot its event; and
    read by our own code and written again it is the same bytes, so that nothing is sent in another order or form than ours.
    """
    problem = next(iter(writing(definition).iter_errors(message)), None)
    if problem is not None:
        return f"{definition}: {problem.message} at {problem.json_path}"
    try:
        again = read(definition, frame)
    except (ValueError, Refusal) as error:
        return f"{definition}: {error}"
    return None if again == frame else f"{definition}: not as it is written: {frame[:200]!r}"


def _shapes(method: str) -> Any:
    return SHAPES[msgspec.convert(method, MethodName)]


def _request(message: envelope.Request, method: str) -> bytes:
    if message.method != method:
        raise InvalidRequest("another method")
    params = codec.decode(message.params, _shapes(method).params, unique=message.unique)
    return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % (
        message.id,
        method.encode(),
        encode(params),
    )


def _any(message: envelope.Message) -> bytes:
    match message:
        case envelope.Request():
            return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % (
                message.id,
                message.method.encode(),
                message.params,
            )
        case envelope.Notification():
            return envelope.notification(message.method, message.params)
        case envelope.Response(outcome=Error() as error):
            return envelope.failure(message.id, error)
        case envelope.Response():
            return envelope.success(message.id, message.outcome)


def _event(event: DurableEvent) -> DurableEvent:
    if event.visibility == "hidden":
        return event
    payload = read_payload(event)
    if event.kind in ("history.message_deferred", "history.appended"):
        for entry in _entries(payload):
            check_entry(entry)
    _check_entries(payload)
    return msgspec.structs.replace(event, payload=msgspec.Raw(encode(payload)))


def _live_event(event: LiveEvent) -> LiveEvent:
    payload = read_live_payload(event)
    if isinstance(payload, SourcedStreamPayload):
        check_stream_event(payload.event)
    return msgspec.structs.replace(event, payload=msgspec.Raw(encode(payload)))


def _entries(value: object) -> Iterable[HistoryEntry]:
    """Find the history entries inside decoded structs."""
    if isinstance(value, HistoryEntry):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _entries(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _entries(getattr(value, name))


def _check_entries(value: object) -> None:
    for entry in _entries(value):
        if not entry.redacted and classify_item(entry.payload) != (entry.role, entry.kind):
            raise ValueError("the entry does not fit its payload")


_DEFAULTS = {
    "server.health.request": {"include_details": False},
    "session.list.request": {"labels": {}},
}


def complete(definition: str, document: Any) -> Any:
    """Return a decoded message with the defaults of wire 13, which are always written."""
    if "method" in document:
        document["params"] = _DEFAULTS.get(definition, {}) | document.get("params", {})
    return document
