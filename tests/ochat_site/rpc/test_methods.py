"""The method table says of each method what the protocol's own table says."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_origin

import msgspec
import pytest

from ochat_site.dialects.ochat1.types import SHAPES, MethodName
from ochat_site.rpc.context import Method
from ochat_site.rpc.methods import METHODS
from tests.golden.contract import METHODS as PROTOCOL

FACTS: dict[str, dict[str, Any]] = {facts["method"]: facts for facts in PROTOCOL}
ROWS = [row for (dialect, _), row in METHODS.items() if dialect == "ochat1"]


def name(row: Method) -> str:
    return row.name


def test_the_first_methods_are_handled() -> None:
    assert {row.name for row in ROWS} >= {
        "protocol.initialize",
        "protocol.ping",
        "server.info",
        "server.health",
        "prompt.list",
        "prompt.get",
        "workspace.list",
        "workspace.get",
        "session.create",
        "session.list",
        "session.get",
        "session.attach",
        "session.detach",
        "session.start",
        "session.stop",
        "session.send_message",
        "session.cancel_operation",
    }


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_row_agrees_with_the_protocol(row: Method) -> None:
    facts = FACTS[row.name]

    assert row.scope == facts["scope"]
    assert row.attachment == facts["needs_attachment"]
    assert row.idempotency == facts["idempotency"]


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_row_has_the_shapes_and_the_handler_of_its_method(row: Method) -> None:
    shapes = SHAPES[msgspec.convert(row.name, MethodName)]
    signature = inspect.signature(row.handler)
    *_, params = signature.parameters.values()

    assert (row.params, row.result) == shapes
    assert row.handler.__name__ == row.name.replace(".", "_")
    assert params.annotation == row.params.__name__
    assert signature.return_annotation == _written(row.result)


def _written(shape: Any) -> str:
    origin = get_origin(shape)
    return shape.__name__ if origin is None else f"{origin.__name__}[{get_args(shape)[0].__name__}]"


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_what_carries_a_key_or_an_attachment_says_so(row: Method) -> None:
    members = row.params.__struct_fields__

    assert ("idempotency_key" in members) == (row.idempotency != "none")
    assert ("attachment_id" in members) == (row.attachment != "none")


def test_new_work_is_what_the_contract_names() -> None:
    """Behaviour 1.1, step 7."""
    assert {row.name for row in ROWS if row.new_work} == {
        "session.create",
        "session.start",
        "session.send_message",
    }


def test_only_initialize_opens_a_connection() -> None:
    assert {row.name for row in ROWS if row.opens} == {"protocol.initialize"}


def test_nobody_can_change_the_table() -> None:
    with pytest.raises(TypeError):
        METHODS["ochat1", "session.delete"] = ROWS[0]  # type: ignore[index]
    with pytest.raises(AttributeError):
        ROWS[0].scope = None  # type: ignore[misc]
