"""Whatever a client sends is answered with a result or a typed error, or not at all; nothing fails, nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ochat_site.rpc.methods import METHODS
from sessions_app.encoding import encode
from sessions_app.ids import derived_id
from tests.golden.contract import EXAMPLES
from tests.golden.contract import METHODS as PROTOCOL
from tests.support.serving import Held, Host, check, identity, serving
from tests.support.shaped import JSON, definition
from tests.support.world import ALL_SCOPES, World

HANDLED = sorted(method for dialect, method in METHODS if dialect == "ochat1")
SECONDS = 30


class Line:
    """A client of a served world, spoken to from outside its loop; connected anew when its connection ends."""

    def __init__(self, world: World) -> None:
        self._runner = asyncio.Runner()
        self._serving = serving()
        self._world = world
        self.host: Host = self._run(self._serving.__aenter__())
        self.held: Held = self._run(self._attached())

    def _run(self, work: Any) -> Any:
        return self._runner.run(asyncio.wait_for(work, SECONDS))

    async def _attached(self) -> Held:
        client = await self.host.client(identity("ann", scopes=ALL_SCOPES))
        return await client.create(self._world, start=True)

    def say(self, frame: bytes) -> None:
        """Send a frame and check what is answered."""
        if self.held.attachment_id not in self.held.peer.connection.attachments:
            # What was said before has detached it, or ended its connection.
            self.held = self._run(self._attached())
        answer = self._run(self.host.services.handle(self.held.peer.connection, frame))
        if answer is None:
            return
        assert b"\n" not in answer
        message = msgspec.json.decode(answer)
        if "error" in message:
            check("ErrorEnvelope", message)
            assert message["error"]["code"] != "internal_error"
        else:
            check(f"{msgspec.json.decode(frame)['method']}.response", message)

    def close(self) -> None:
        """Leave."""
        self._run(self._serving.__aexit__(None, None, None))
        self._runner.close()


@pytest.fixture
def line(served_world: World) -> Iterator[Line]:
    """One world for all examples of a test: they only ever add to it."""
    made = Line(served_world)
    yield made
    made.close()


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


# Frames that are hardly messages

ENVELOPES = st.dictionaries(
    st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]),
    JSON | st.sampled_from(["2.0", *HANDLED]),
)
TEXTS = st.sampled_from([each.text for each in EXAMPLES])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return an example with a part cut out, doubled, or replaced by noise."""
    text = draw(TEXTS)
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, len(text)))
    filling = draw(st.just(b"") | st.just(text[begin:end] * 2) | st.binary(max_size=8))
    return text[:begin] + filling + text[end:]


FRAMES = (
    st.binary() | st.text().map(str.encode) | JSON.map(encode) | ENVELOPES.map(encode) | TEXTS | damaged()
)


# Calls whose params look right

_SHAPES = {facts["method"]: facts["params"]["$ref"].rpartition("/")[2] for facts in PROTOCOL}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any, bool]:
    """Return a handled method, params for it, and whether they shall name what is there."""
    method = draw(st.sampled_from(HANDLED))
    return method, draw(definition(_SHAPES[method])), draw(st.booleans())


def named(params: Any, held: Held) -> Any:
    """Return params that name this world's session, attachment, prompt and workspace wherever they name one."""
    own = {
        "session_id": held.session_id,
        "attachment_id": held.attachment_id,
        "prompt_id": derived_id("prd", "demo"),
        "workspace_id": derived_id("wsd", "physical"),
    }
    if isinstance(params, dict):
        return {name: own.get(name) or named(value, held) for name, value in params.items()}
    return [named(value, held) for value in params] if isinstance(params, list) else params


def check_frames(line: Line, count: int) -> None:
    @examples(count)
    @given(frame=FRAMES)
    def each(frame: bytes) -> None:
        line.say(frame)

    each()


def check_calls(line: Line, count: int) -> None:
    @examples(count)
    @given(call=calls())
    def each(call: tuple[str, Any, bool]) -> None:
        method, params, own = call
        shown = named(params, line.held) if own else params
        line.say(encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": shown}))

    each()


def test_any_frame_is_answered_or_passed_over(line: Line) -> None:
    check_frames(line, 200)


def test_any_call_is_answered(line: Line) -> None:
    check_calls(line, 100)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_any_frame_at_length(line: Line) -> None:
    check_frames(line, 5000)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_any_call_at_length(line: Line) -> None:
    check_calls(line, 3000)
