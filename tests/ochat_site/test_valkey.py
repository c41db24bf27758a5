"""The private Valkey: a real one on a socket."""

import stat
import subprocess
from pathlib import Path

import redis

from ochat_site import valkey
from tests.support.waiting import until


def test_it_answers_on_its_socket_and_nowhere_else(tmp_path: Path) -> None:
    assert not valkey.answers(tmp_path)
    server = subprocess.Popen(valkey.command(tmp_path))
    try:
        until(lambda: valkey.answers(tmp_path), "Valkey answers")
        assert stat.S_IMODE(valkey.socket_path(tmp_path).stat().st_mode) == 0o700
        with redis.Redis.from_url(valkey.url(tmp_path)) as client:
            settings = {name: client.config_get(name)[name] for name in ("port", "save", "appendonly")}
            assert settings == {"port": "0", "save": "", "appendonly": "no"}
            client.set("key", "value")
    finally:
        server.terminate()
    assert server.wait(30) == 0
    assert not valkey.answers(tmp_path)


def test_it_starts_again_after_it_was_killed(tmp_path: Path) -> None:
    for _ in range(2):
        server = subprocess.Popen(valkey.command(tmp_path))
        until(lambda: valkey.answers(tmp_path), "Valkey answers")
        server.kill()
        server.wait(30)
