"""The scenarios over line transports: the same bodies as over the others, one after another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from tests.conformance import (
    test_a_envelope,
    test_d_lifecycle,
    test_e_attachments,
    test_f_messages,
    test_g_permissions,
    test_h_events,
    test_k_receipts,
)
from tests.conformance.fixture import ADMIN
from tests.conformance.line_sites import GatewaySite, ProcessSite, UnixSite
from tests.conformance.sites import Processes, Site
from tests.support.model_servers import ModelServer

Scenario = Callable[[Site], Awaitable[None]] | partial[Awaitable[None]]

ROWS: tuple[Scenario, ...] = (
    test_a_envelope.test_a1,
    test_a_envelope.test_a3,
    test_a_envelope.test_a18,
    test_a_envelope.test_a24,
    test_d_lifecycle.test_d1,
    test_d_lifecycle.test_d2,
    test_e_attachments.test_e2,
    test_e_attachments.test_e3,
    test_e_attachments.test_e4,
    test_e_attachments.test_e6,
    test_e_attachments.test_e12,
    test_f_messages.test_f1,
    test_f_messages.test_f2,
    test_f_messages.test_f7,
    test_g_permissions.test_g2,
    test_h_events.test_h1,
    partial(test_h_events.test_h2, person=ADMIN),
    test_h_events.test_h8,
    test_k_receipts.test_k2,
    partial(test_k_receipts.test_k8, method="session.list"),
)
"""Rows that need no second principal and name no header."""


def _name(scenario: Scenario) -> str:
    function = scenario.func if isinstance(scenario, partial) else scenario
    return function.__name__.removeprefix("test_")


OVER_A_GATEWAY = (
    test_a_envelope.test_a1,
    test_a_envelope.test_a3,
    test_a_envelope.test_a18,
    test_a_envelope.test_a24,
    test_d_lifecycle.test_d1,
    test_f_messages.test_f1,
    partial(test_h_events.test_h2, person=ADMIN),
    pytest.param(test_h_events.test_h8, marks=pytest.mark.long),
)


@pytest.mark.parametrize("scenario", ROWS, ids=_name)
async def test_over_unix(unix_site: UnixSite, scenario: Scenario) -> None:
    await scenario(unix_site)


OF_PROCESSES: tuple[Scenario, ...] = (
    test_a_envelope.test_a3,
    test_a_envelope.test_a18,
    test_a_envelope.test_a24,
    test_d_lifecycle.test_d1,
    test_f_messages.test_f1,
)


@pytest.mark.parametrize("scenario", OF_PROCESSES, ids=_name)
@pytest.mark.parametrize(
    "scheme",
    ["", *(pytest.param(scheme, marks=pytest.mark.long) for scheme in ("unix", "ws", "http"))],
    ids=["unix", "stdio-unix", "stdio-ws", "stdio-http"],
)
async def test_over_processes(
    site_processes: Processes, site_store: None, model_server: ModelServer, scheme: str, scenario: Scenario
) -> None:
    model_server.reset()
    site = ProcessSite(site_processes, model_server, scheme)
    try:
        await scenario(site)
        await site.check_laws()
    finally:
        await site.close()


@pytest.mark.parametrize("scenario", OVER_A_GATEWAY, ids=_name)
async def test_over_a_gateway(gateway_site: GatewaySite, scenario: Scenario) -> None:
    await scenario(gateway_site)
