"""Which server, and which token for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ochat_site import env
from ochat_site.env import ConfigError
from ochat_site.terminal.target import Target, find


@pytest.fixture
def here(tmp_path: Path) -> env.Env:
    (tmp_path / "client.token").write_text("ours\n", encoding="utf-8")
    return env.read({"OCHAT_DATA_DIR": str(tmp_path), "OCHAT_BIND": "0.0.0.0:9000"}, tmp_path)


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        (None, Target("ws://127.0.0.1:9000", "ours")),
        ("ws://localhost:9000", Target("ws://localhost:9000", "ours")),
        ("ws://[::1]:9000/v1/ws", Target("ws://[::1]:9000/v1/ws", "ours")),
        ("wss://elsewhere.example", Target("wss://elsewhere.example", None)),
        ("unix:///run/agent.sock", Target("unix:///run/agent.sock", None)),
    ],
)
def test_the_token_of_this_machine_goes_nowhere_else(here: env.Env, uri: str | None, found: Target) -> None:
    assert find(here, uri, None) == found


def test_a_token_that_is_named_goes_where_it_is_sent(here: env.Env, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs\n", encoding="utf-8")
    assert find(here, "wss://elsewhere.example", tmp_path / "theirs").token == "theirs"


def test_a_named_token_must_be_there(here: env.Env, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read a token"):
        find(here, None, tmp_path / "none")


def test_without_a_token_the_server_is_asked_all_the_same(here: env.Env, tmp_path: Path) -> None:
    (tmp_path / "client.token").unlink()
    assert find(here, None, None) == Target("ws://127.0.0.1:9000", None)


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Target("ws://x", "secret"))
