"""Where the terminal client connects, and with which token.

Owns: the defaults of both. Does not own: connecting (`ochat_client`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ochat_site.env import ConfigError, Env

CLIENT_TOKEN = "client.token"  # noqa: S105 - the name of a file


@dataclass(frozen=True)
class Target:
    """A server, and the bearer token that speaks for us there, if there is one."""

    uri: str
    token: str | None = field(repr=False)


def find(env: Env, uri: str | None, token_file: Path | None) -> Target:
    """Return the server at `uri`, or this machine's own.

    The token of the data folder is for the server of this machine: another host gets a token only when its file is
    named. Refuses with ConfigError a file that is named and cannot be read.
    """
    own = env.bind.url.replace("http", "ws", 1)
    target = uri or own
    if token_file is not None:
        try:
            return Target(target, token_file.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"{token_file}: cannot read a token from this file.") from None
    kept = env.data_dir / CLIENT_TOKEN
    if urlsplit(target).scheme in ("unix", "stdio"):
        return Target(target, None)  # These know us by our user.
    is_own = urlsplit(target).hostname in ("localhost", "127.0.0.1", "::1", urlsplit(own).hostname)
    try:
        return Target(target, kept.read_text(encoding="utf-8").strip() if is_own else None)
    except (OSError, UnicodeDecodeError):
        return Target(target, None)  # The server says what it thinks of that.
