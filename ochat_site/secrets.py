"""The secret key: made once, kept in a file that only its owner reads.

Owns the private data folder's first lines: the folder itself (0700) and private files (0600) in it.
It does not own where they are (`env.py`).
"""

import os
import secrets
from pathlib import Path

from ochat_site.env import MIN_SECRET_KEY_CHARS, ConfigError, Env

SECRET_KEY_BYTES = 48  # 64 characters in base64, 384 bits.


def make_private_dir(path: Path) -> None:
    """Make `path` (0700) unless it exists; an existing folder keeps its mode.

    Refuses with `ConfigError` where it cannot be made or written.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot make this folder ({error.strerror}).") from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: this folder is not writable.")


def write_private_file(path: Path, text: str) -> bool:
    """Put `text` into the new file `path` (0600), whole or not at all; false when the file exists already.

    Refuses with `ConfigError` where it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A link, because a rename would replace the file of a process that was faster.
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"{path}: cannot write this file ({error.strerror}).") from None
    finally:
        draft.unlink(missing_ok=True)
    return True


def secret_key(env: Env) -> str:
    """The key that signs cookies and cursors; the first call on a data folder makes it.

    Refuses with `ConfigError` when the named file is missing, too short or unreadable.
    """
    if env.secret_key is not None:
        return env.secret_key
    path = env.secret_key_file
    if env.secret_key_is_generated and not path.exists():
        make_private_dir(path.parent)
        write_private_file(path, secrets.token_urlsafe(SECRET_KEY_BYTES) + "\n")
    try:
        key = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"OCHAT_SECRET_KEY_FILE: cannot read {path} ({error.strerror}).") from None
    if len(key) < MIN_SECRET_KEY_CHARS:
        raise ConfigError(f"OCHAT_SECRET_KEY_FILE: {path} holds less than {MIN_SECRET_KEY_CHARS} characters.")
    return key
