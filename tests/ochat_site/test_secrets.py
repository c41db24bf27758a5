"""The secret key and private files."""

import stat
from pathlib import Path

import pytest

from ochat_site import env, secrets
from ochat_site.env import ConfigError

KEY = "k" * 40


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_call_makes_the_key_and_later_ones_keep_it(tmp_path: Path) -> None:
    found = env.read({"OCHAT_DATA_DIR": "data"}, tmp_path)
    key = secrets.secret_key(found)
    assert len(key) == 64
    assert secrets.secret_key(found) == key
    assert _mode(tmp_path / "data") == 0o700
    assert _mode(tmp_path / "data" / "secret.key") == 0o600
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["secret.key"]


def test_a_key_in_the_environment_needs_no_file(tmp_path: Path) -> None:
    found = env.read({"OCHAT_DATA_DIR": "data", "OCHAT_SECRET_KEY": KEY}, tmp_path)
    assert secrets.secret_key(found) == KEY
    assert not (tmp_path / "data").exists()


def test_a_named_file_is_read_and_never_made(tmp_path: Path) -> None:
    found = env.read({"OCHAT_SECRET_KEY_FILE": "key"}, tmp_path)
    with pytest.raises(ConfigError, match="OCHAT_SECRET_KEY_FILE: cannot read"):
        secrets.secret_key(found)
    (tmp_path / "key").write_text("short")
    with pytest.raises(ConfigError, match="less than 32 characters"):
        secrets.secret_key(found)
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert secrets.secret_key(found) == KEY


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot make this folder"):
        secrets.make_private_dir(tmp_path / "file" / "data")


def test_a_private_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert secrets.write_private_file(path, "first")
    assert not secrets.write_private_file(path, "second")
    assert path.read_text() == "first"
    assert _mode(path) == 0o600
    with pytest.raises(ConfigError, match="cannot write this file"):
        secrets.write_private_file(tmp_path / "no" / "token", "text")
