"""The structs have the names, members and words of the schema, and the tables are total."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from ochat_site.dialects.ochat1 import types
from sessions_app import errors, events, records
from tests.golden.contract import DEFS, METHODS

WITHOUT_TYPE = {
    "AnyJson": "free JSON, carried encoded",
    "RequestId": "a raw token",
    "ClientRequest": "a call, told apart by its method",
    "DurableEventProduced": "a `DurableEvent` whose payload is read by `events.read_payload`",
    "LiveEventProduced": "a `LiveEvent` whose payload is read by `events.read_live_payload`",
    "HistoryEntryProduced": "a `HistoryEntry` that passes `check_entry`",
    "SessionEventNotification": "an envelope",
    "SessionLiveEventNotification": "an envelope",
}
NAMED = [
    name
    for name in DEFS
    if not name.endswith((".request", ".response", "Envelope")) and name not in WITHOUT_TYPE
]


def ours(name: str) -> Any:
    for module in (records, events, types):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"{name} is not defined")


def members(struct: Any) -> dict[str, bool]:
    """Return the members of a struct and whether each must be there."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    found = {field.encode_name: field.required for field in info.fields}
    return found if info.tag_field is None else found | {info.tag_field: True}


@pytest.mark.parametrize("name", NAMED)
def test_a_definition_has_a_type(name: str) -> None:
    assert ours(name) is not None


@pytest.mark.parametrize("name", [name for name in NAMED if "enum" in DEFS[name]])
def test_an_enum_has_the_words_of_the_schema(name: str) -> None:
    assert get_origin(ours(name)) is Literal
    assert list(get_args(ours(name))) == DEFS[name]["enum"]


@pytest.mark.parametrize(
    "name",
    [name for name in NAMED if "properties" in DEFS[name]],
)
def test_a_struct_has_the_members_of_the_schema(name: str) -> None:
    node = DEFS[name]

    assert members(ours(name)) == {member: member in node["required"] for member in node["properties"]}


@pytest.mark.parametrize(
    "name", [name for name in NAMED if all("properties" in case for case in DEFS[name].get("oneOf", [{}]))]
)
def test_a_union_has_the_variants_of_the_schema(name: str) -> None:
    if not isinstance(ours(name), UnionType):
        assert name in ("ModeratorNotificationPayload", "SessionSendMessageParams")
        return
    variants = sorted(sorted(members(variant).items()) for variant in get_args(ours(name)))

    assert variants == sorted(
        sorted({member: member in case["required"] for member in case["properties"]}.items())
        for case in DEFS[name]["oneOf"]
    )


def test_every_code_has_a_refusal() -> None:
    assert list(errors.BY_CODE) == DEFS["ErrorCode"]["enum"]


def test_every_durable_kind_has_a_payload() -> None:
    assert list(events.PAYLOADS) == DEFS["DurableEventKind"]["enum"]


def test_every_live_kind_has_a_payload() -> None:
    assert list(events.LIVE_PAYLOADS) == DEFS["RecoverableEventKind"]["enum"]


def test_every_stream_event_has_a_shape() -> None:
    listed = {
        case["if"]["properties"]["type"]["const"]: case["then"]
        for case in DEFS["ProviderStreamEvent"]["allOf"]
    }

    assert set(records.STREAM_EVENTS) == set(listed)
    for kind, node in listed.items():
        assert set(members(records.STREAM_EVENTS[kind])) - {"type"} == set(node["required"])


def test_every_method_has_params_and_result() -> None:
    def named(reference: dict[str, str]) -> Any:
        return ours(reference["$ref"].rpartition("/")[2])

    assert list(types.SHAPES) == list(get_args(types.MethodName)) == [row["method"] for row in METHODS]
    for row, shapes in zip(METHODS, types.SHAPES.values(), strict=True):
        assert shapes == (named(row["params"]), named(row["result"]))


def test_the_keyed_methods_are_those_with_a_receipt() -> None:
    keyed = {method for method, shapes in types.SHAPES.items() if "idempotency_key" in members(shapes.params)}

    assert keyed == {row["method"] for row in METHODS if row["idempotency"] != "none"}
