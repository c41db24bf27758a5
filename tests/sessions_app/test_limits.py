"""The numbers of behaviour 16 and how they are put in force."""

from __future__ import annotations

import msgspec
import pytest

from sessions_app import limits
from sessions_app.limits import ServerSettings


def test_defaults_contradict_nothing() -> None:
    assert ServerSettings().contradiction() is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (ServerSettings(process_heartbeat_ms=12_000), "process_expiry_ms"),
        (ServerSettings(owner_lease_duration_ms=30_000), "owner_renew_after_ms"),
    ],
)
def test_contradicting_durations_are_named(settings: ServerSettings, named: str) -> None:
    contradiction = settings.contradiction()
    assert contradiction is not None
    assert contradiction[0] == named


def test_only_the_delay_may_be_zero() -> None:
    assert (
        msgspec.convert({"disconnect_grace_default_ms": 0}, ServerSettings).disconnect_grace_default_ms == 0
    )
    with pytest.raises(msgspec.ValidationError, match="maintenance_ms"):
        msgspec.convert({"maintenance_ms": 0}, ServerSettings)


def test_settings_hold_inside_the_block_only() -> None:
    before = limits.server()
    with limits.using(ServerSettings(max_connections=3)):
        assert limits.server().max_connections == 3
    assert limits.server() is before
