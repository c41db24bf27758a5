"""The environment: every `OCHAT_*` variable, parsed once into one frozen `Env`.

Owns the names, defaults and syntax of the variables. It is pure: it makes no file and opens nothing
(`secrets.py` keeps the key, `supervisor.py` makes the folder), and it knows no Django, because the
supervisor reads it too. `settings.py` turns an `Env` into Django settings.

A variable that is set to the empty string counts as not set.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

T = TypeVar("T")

LogFormat = Literal["text", "json"]

DEFAULT_BIND = "127.0.0.1:8787"
DEFAULT_MODEL_PROVIDER = "openai-responses"

# The kernel refuses longer socket names (sun_path holds 108 bytes with its final zero).
MAX_SOCKET_PATH_BYTES = 107
# Below this a key can be guessed; the generated one has 64 characters.
MIN_SECRET_KEY_CHARS = 32

# What of libpq's connection parameters may stand in a database URL.
POSTGRES_PARAMETERS = frozenset(
    {
        "application_name",
        "connect_timeout",
        "keepalives",
        "keepalives_idle",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
    }
)


class ConfigError(Exception):
    """A value that start-up refuses; the message is one line, names the variable and shows no secret."""


@dataclass(frozen=True, kw_only=True)
class SqliteDatabase:
    """A SQLite file on a local disk."""

    path: Path


@dataclass(frozen=True, kw_only=True)
class PostgresDatabase:
    """A PostgreSQL server; empty members are left to libpq."""

    name: str
    user: str = ""
    password: str = field(default="", repr=False)
    host: str = ""
    port: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Redis:
    """The broker and channel layer: a Redis or Valkey server, over TCP, TLS or a Unix socket."""

    url: str = field(repr=False)

    @property
    def broker_url(self) -> str:
        """The same server as Celery names it."""
        parts = urlsplit(self.url)
        if parts.scheme != "unix":
            return self.url
        database = dict(parse_qsl(parts.query)).get("db", "0")
        return f"redis+socket://{parts.path}?virtual_host={database}"


@dataclass(frozen=True, kw_only=True)
class FolderStorage:
    """Blobs and archives in a local folder."""

    path: Path


@dataclass(frozen=True, kw_only=True)
class S3Storage:
    """Blobs and archives in a bucket; credentials come from the usual AWS variables."""

    bucket: str
    prefix: str
    endpoint_url: str | None


@dataclass(frozen=True, kw_only=True)
class Bind:
    """Where the web process listens."""

    host: str
    port: int

    @property
    def local_host(self) -> str:
        """The host by which this machine reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound

    @property
    def url(self) -> str:
        """The address a browser on this machine opens."""
        host = self.local_host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class ProxyTlsHeader:
    """The request header, and its value, by which a trusted proxy says that the client used TLS."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Env:
    """Everything the environment settles. Paths are absolute."""

    data_dir: Path
    database: SqliteDatabase | PostgresDatabase
    redis: Redis | None
    storage: FolderStorage | S3Storage
    catalog: Path
    secret_key: str | None = field(repr=False)
    secret_key_file: Path
    secret_key_is_generated: bool
    secret_key_fallbacks: tuple[str, ...] = field(repr=False)
    bind: Bind
    allowed_hosts: tuple[str, ...]
    trusted_origins: tuple[str, ...]
    proxy_tls_header: ProxyTlsHeader | None
    shell_user: str | None
    update_index: str | None
    update_key: str | None
    model_provider: str
    log_format: LogFormat

    @property
    def run_dir(self) -> Path:
        """The private folder (0700) of this data folder's sockets."""
        return self.data_dir / "run"


def read(environ: Mapping[str, str], cwd: Path) -> Env:
    """Parse `environ`; relative paths are taken from `cwd`.

    Refuses with `ConfigError`.
    """
    variables = _Variables(environ)
    data_dir = variables.parse("OCHAT_DATA_DIR", "./var", lambda text: _data_dir(text, cwd))
    bind = variables.parse("OCHAT_BIND", DEFAULT_BIND, _bind)
    secret_key = variables.optional("OCHAT_SECRET_KEY", _secret_key)
    secret_key_file = variables.optional("OCHAT_SECRET_KEY_FILE", lambda text: _path(text, cwd))
    if secret_key is not None and secret_key_file is not None:
        raise ConfigError("OCHAT_SECRET_KEY and OCHAT_SECRET_KEY_FILE exclude each other; unset one.")
    return Env(
        data_dir=data_dir,
        database=variables.optional("OCHAT_DATABASE_URL", lambda text: _database(text, cwd))
        or SqliteDatabase(path=data_dir / "ochat.sqlite3"),
        redis=variables.optional("OCHAT_REDIS_URL", _redis),
        storage=variables.optional("OCHAT_STORAGE_URL", _storage) or FolderStorage(path=data_dir / "files"),
        catalog=variables.optional("OCHAT_CATALOG", lambda text: _path(text, cwd)) or data_dir / "ochat.toml",
        secret_key=secret_key,
        secret_key_file=secret_key_file or data_dir / "secret.key",
        secret_key_is_generated=secret_key is None and secret_key_file is None,
        secret_key_fallbacks=variables.parse("OCHAT_SECRET_KEY_FALLBACKS", "", _list(_secret_key)),
        bind=bind,
        allowed_hosts=variables.optional("OCHAT_ALLOWED_HOSTS", _list(_allowed_host)) or _hosts_of(bind),
        trusted_origins=variables.parse("OCHAT_TRUSTED_ORIGINS", "", _list(_origin)),
        proxy_tls_header=variables.optional("OCHAT_PROXY_TLS_HEADER", _proxy_tls_header),
        shell_user=variables.optional(
            "OCHAT_SHELL_USER", _matching(r"[a-z_][a-z0-9_-]{0,31}", "a user name")
        ),
        update_index=variables.optional(
            "OCHAT_UPDATE_INDEX", _matching(r"(https|file)://\S+", "an https:// or file:// URL")
        ),
        update_key=variables.optional(
            "OCHAT_UPDATE_KEY", _matching(r"[A-Za-z0-9+/=_-]+", "a base64 public key")
        ),
        model_provider=variables.parse(
            "OCHAT_MODEL_PROVIDER", DEFAULT_MODEL_PROVIDER, _matching(r"[a-z][a-z0-9_-]*", "a provider name")
        ),
        log_format=variables.parse("OCHAT_LOG_FORMAT", "text", _log_format),
    )


class _Variables:
    """Looks variables up and puts the name in front of what a parser complains about."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def optional(self, name: str, parser: Callable[[str], T]) -> T | None:
        text = self._environ.get(name, "").strip()
        return self._parsed(name, text, parser) if text else None

    def parse(self, name: str, default: str, parser: Callable[[str], T]) -> T:
        return self._parsed(name, self._environ.get(name, "").strip() or default, parser)

    def _parsed(self, name: str, text: str, parser: Callable[[str], T]) -> T:
        try:
            return parser(text)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}.") from None


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    def parser(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"expected {what}, not {text!r}")
        return text

    return parser


def _list(item: Callable[[str], str]) -> Callable[[str], tuple[str, ...]]:
    def parser(text: str) -> tuple[str, ...]:
        return tuple(item(part) for part in _non_empty(text.split(",")))

    return parser


def _non_empty(parts: Iterable[str]) -> list[str]:
    return [part.strip() for part in parts if part.strip()]


def _path(text: str, cwd: Path) -> Path:
    if "\0" in text:
        raise ValueError("a path holds no zero byte")
    return Path(cwd, Path(text).expanduser()).absolute()


def _data_dir(text: str, cwd: Path) -> Path:
    path = _path(text, cwd)
    longest = path / "run" / "valkey.sock"
    if len(bytes(longest)) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"{str(path)!r} is too long: the sockets in it need names under 108 bytes")
    return path


def _secret_key(text: str) -> str:
    if len(text) < MIN_SECRET_KEY_CHARS:
        raise ValueError(f"a key needs at least {MIN_SECRET_KEY_CHARS} characters")
    return text


def _log_format(text: str) -> LogFormat:
    if text == "text":
        return "text"
    if text == "json":
        return "json"
    raise ValueError(f"expected text or json, not {text!r}")


def _bind(text: str) -> Bind:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address needs brackets, as in [::1]:8787, not {text!r}")
    if not (colon and host and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"expected HOST:PORT, as in {DEFAULT_BIND}, not {text!r}")
    return Bind(host=host, port=int(port))


def _hosts_of(bind: Bind) -> tuple[str, ...]:
    """What may stand in a `Host` header when nothing is said: this machine, by the address it listens on."""
    local = ("localhost", "127.0.0.1", "[::1]")
    try:
        address = ip_address(bind.host)
    except ValueError:
        return tuple(dict.fromkeys((bind.host, *local)))
    if address.is_unspecified:
        return local
    return tuple(dict.fromkeys((f"[{address}]" if address.version == 6 else str(address), *local)))


def _allowed_host(text: str) -> str:
    if re.fullmatch(r"\*|\.?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:.]+\]", text) is None:
        raise ValueError(f"expected host names without scheme, port or path, not {text!r}")
    return text


def _origin(text: str) -> str:
    parts = _split(text)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.path
        or parts.query
        or parts.username
    ):
        raise ValueError(f"expected origins, as in https://ochat.example.org, not {text!r}")
    return text


def _proxy_tls_header(text: str) -> ProxyTlsHeader:
    name, _, value = text.partition("=")
    if re.fullmatch(r"[A-Za-z0-9-]+", name) is None:
        raise ValueError(
            f"expected a header name, as in X-Forwarded-Proto or X-Forwarded-Proto=https, not {text!r}"
        )
    return ProxyTlsHeader(name=name, value=value or "https")


def _split(text: str) -> SplitResult:
    """`urlsplit` with the port checked; complaints never repeat the URL, which may hold a password."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - the property is what checks the port
    except ValueError:
        raise ValueError("this is not a URL") from None
    return parts


def _database(text: str, cwd: Path) -> SqliteDatabase | PostgresDatabase:
    parts = _split(text)
    if parts.scheme == "sqlite":
        if parts.netloc or parts.query or not parts.path.strip("/"):
            raise ValueError("expected sqlite:///absolute/path or sqlite:relative/path")
        return SqliteDatabase(path=_path(re.sub("^/+", "/", unquote(parts.path)), cwd))
    if parts.scheme in ("postgresql", "postgres"):
        return _postgres(parts)
    raise ValueError("expected a sqlite: or postgresql: URL")


def _postgres(parts: SplitResult) -> PostgresDatabase:
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    host = parameters.pop("host", None) or unquote(parts.hostname or "")
    name = unquote(parts.path.removeprefix("/"))
    if not name or "/" in name:
        raise ValueError("expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    if unknown := sorted(parameters.keys() - POSTGRES_PARAMETERS):
        raise ValueError(f"unknown parameter {unknown[0]!r}")
    return PostgresDatabase(
        name=name,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=host,
        port=parts.port,
        parameters=parameters,
    )


def _redis(text: str) -> Redis:
    parts = _split(text)
    if parts.scheme == "unix":
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.netloc or not parts.path.startswith("/") or parameters.keys() - {"db"}:
            raise ValueError("expected unix:///absolute/path/of.sock, with ?db=NUMBER if not 0")
        if not parameters.get("db", "0").isdigit():
            raise ValueError("db is a number")
        return Redis(url=text)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise ValueError("expected redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///path/of.sock")
    if re.fullmatch(r"/?[0-9]*", parts.path) is None:
        raise ValueError("the path of a redis: URL is a database number")
    return Redis(url=text)


def _storage(text: str) -> FolderStorage | S3Storage:
    parts = _split(text)
    if parts.scheme == "file" and not parts.netloc and parts.path.strip("/"):
        return FolderStorage(path=Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.hostname:
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
        endpoint_url = parameters.pop("endpoint_url", None)
        if parameters:
            raise ValueError(f"unknown parameter {sorted(parameters)[0]!r}")
        return S3Storage(bucket=parts.netloc, prefix=parts.path.strip("/"), endpoint_url=endpoint_url)
    raise ValueError("expected file:///absolute/path or s3://BUCKET/PREFIX")
