"""Whatever the schema allows as the params of a method is answered by what the schema allows; nothing fails, nothing hangs.

Half of the calls name what is there, so that they get behind the look-up of what they name.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings as django_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ochat_client import new_key
from tests.conformance import fixture
from tests.conformance.checked import Checked
from tests.conformance.local import LocalSite
from tests.conformance.peers import WAIT_SECONDS
from tests.conformance.test_a_envelope import INITIALIZE
from tests.golden.contract import METHODS
from tests.support.described import described
from tests.support.model_servers import ModelServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

EXAMPLES = 10
PARAMS = {facts["method"]: facts["params"]["$ref"].rpartition("/")[2] for facts in METHODS}
ENDING = frozenset({"session.detach", "session.delete"})
"""Methods that may leave nothing to name."""
SPEC = {
    "execution_host": "daemon",
    "prompt": {"type": "catalog", "prompt_id": fixture.prompt(fixture.SMOKE)},
    "workspace": {"type": "configured", "workspace_id": fixture.workspace(fixture.PHYSICAL)},
    "liveness": {"type": "detached"},
    "persistence": "durable",
    "start_immediately": True,
    "labels": {},
}

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Caller:
    """A client that says what it is told to."""

    def __init__(self, run: Run, site: LocalSite) -> None:
        self._run = run
        self._site = site
        self._number = 0
        self.own: dict[str, Any] = {}
        """What there is, by the names of members that may name it."""
        self._run(self._begin())

    def call(self, method: str, params: Any) -> Any:
        """Return the answer to a call, which was checked."""
        return self._run(self._call(method, params))

    def renew(self) -> None:
        """Have another session, with a message and a schedule, to name in calls."""
        self._run(self._renew())

    def named(self, params: Any) -> Any:
        """Return params that name what there is wherever they may."""
        if isinstance(params, dict):
            return {name: self.own.get(name) or self.named(value) for name, value in params.items()}
        return [self.named(value) for value in params] if isinstance(params, list) else params

    def revised(self, params: Any) -> Any:
        """Return params that expect the revision at which the session is."""
        if "expected_revision" not in params:
            return params
        found = self.call("session.get", {"session_id": self.own["session_id"]})
        return {**params, "expected_revision": found["result"]["revision"]}

    async def _begin(self) -> None:
        self._wire: Checked = await self._site.wire()
        await self._call("protocol.initialize", INITIALIZE)
        await self._renew()

    async def _renew(self) -> None:
        made = await self._result(
            "session.create", spec=SPEC, requested_mode="owner_read_write", subscribe=True
        )
        named = {"session_id": made["session"]["id"], "attachment_id": made["attachment"]["attachment"]["id"]}
        said = await self._result("session.send_message", **named, text="hello")
        due = {"type": "after_ms", "delay_ms": 10**9}
        planned = await self._result(
            "schedule.create", **named, payload="x", due=due, misfire="skip_if_expired"
        )
        self.own = {
            **named,
            "prompt_id": fixture.prompt(fixture.SMOKE),
            "workspace_id": fixture.workspace(fixture.PHYSICAL),
            "history_id": said["history_id"],
            "schedule_id": planned["schedule"]["id"],
            "operation_id": said.get("operation_id"),
            "confirmation": named["session_id"],
        }

    async def _result(self, method: str, **params: Any) -> Any:
        answer = await self._call(method, {"idempotency_key": new_key(), **params})
        assert "result" in answer, answer
        return answer["result"]

    async def _call(self, method: str, params: Any) -> Any:
        self._number += 1
        call = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        await self._wire.send(json.dumps(call).encode())
        while True:
            answer = json.loads(await self._wire.receive())
            if answer.get("id") == self._number:
                return answer


@contextmanager
def _served() -> Iterator[Run]:
    """Run a loop beside the test, which draws values for seconds; return what runs in it, and fails when it hangs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="site")
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, 2 * WAIT_SECONDS), loop).result()

    try:
        yield run
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def caller(local_store: None, model_server: ModelServer) -> Iterator[Caller]:
    """One site for all: the calls only ever add to it."""
    with pytest.MonkeyPatch.context() as environment, _served() as run:
        for name, value in model_server.env().items():
            environment.setenv(name, value)
        model_server.reset()
        # Drawing a value may take longer than the suite's processes live without a beat.
        fixture.write(django_settings.ENV.data_dir, {})
        site = LocalSite(django_settings.ENV.data_dir, model_server)
        run(site.start())
        try:
            yield Caller(run, site)
            assert site.problems == []
        finally:
            run(site.close())


@pytest.mark.parametrize("method", PARAMS)
def test_any_params_are_answered(caller: Caller, method: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(params=described(PARAMS[method]), own=st.booleans())
    def each(params: Any, own: bool) -> None:
        if own:
            params = caller.revised(caller.named(params))
        answer = caller.call(method, params)
        if "error" in answer:
            assert answer["error"]["code"] != "internal_error"
        elif method in ENDING:
            caller.renew()

    each()
