"""The environment: what each variable may say, and the one line that refuses the rest."""

from pathlib import Path

import pytest

from ochat_site import env
from ochat_site.env import ConfigError, Env

CWD = Path("/srv/ochat")
KEY = "k" * 32


def read(**variables: str) -> Env:
    return env.read({f"OCHAT_{name}": value for name, value in variables.items()}, CWD)


def test_an_empty_environment_is_a_local_installation() -> None:
    found = read()
    data_dir = CWD / "var"
    assert found == Env(
        data_dir=data_dir,
        database=env.SqliteDatabase(path=data_dir / "ochat.sqlite3"),
        redis=None,
        storage=env.FolderStorage(path=data_dir / "files"),
        catalog=data_dir / "ochat.toml",
        secret_key=None,
        secret_key_file=data_dir / "secret.key",
        secret_key_is_generated=True,
        secret_key_fallbacks=(),
        bind=env.Bind(host="127.0.0.1", port=8787),
        allowed_hosts=("127.0.0.1", "localhost", "[::1]"),
        trusted_origins=(),
        proxy_tls_header=None,
        shell_user=None,
        update_index=None,
        update_key=None,
        model_provider="openai-responses",
        log_format="text",
    )
    assert found.run_dir == data_dir / "run"


def test_a_variable_set_to_nothing_counts_as_not_set() -> None:
    assert read(DATA_DIR="", BIND=" ", REDIS_URL="", SECRET_KEY="", LOG_FORMAT="") == read()


def test_every_variable_has_its_place() -> None:
    found = read(
        DATA_DIR="/data",
        CATALOG="conf/ochat.toml",
        SECRET_KEY=KEY,
        SECRET_KEY_FALLBACKS=f"{KEY}a, {KEY}b",
        BIND="0.0.0.0:80",
        ALLOWED_HOSTS="ochat.example.org, .example.net,[::1]",
        TRUSTED_ORIGINS="https://ochat.example.org,http://localhost:3000",
        PROXY_TLS_HEADER="X-Forwarded-Proto",
        SHELL_USER="ochat-shell",
        UPDATE_INDEX="https://updates.example.org/index.json",
        UPDATE_KEY="RWQf6LRCGA9i5==",
        MODEL_PROVIDER="anthropic",
        LOG_FORMAT="json",
    )
    assert (found.data_dir, found.catalog) == (Path("/data"), CWD / "conf/ochat.toml")
    assert (found.secret_key, found.secret_key_fallbacks) == (KEY, (f"{KEY}a", f"{KEY}b"))
    assert not found.secret_key_is_generated
    assert found.allowed_hosts == ("ochat.example.org", ".example.net", "[::1]")
    assert found.trusted_origins == ("https://ochat.example.org", "http://localhost:3000")
    assert found.proxy_tls_header == env.ProxyTlsHeader(name="X-Forwarded-Proto", value="https")
    assert (found.shell_user, found.model_provider, found.log_format) == ("ochat-shell", "anthropic", "json")
    assert (found.update_index, found.update_key) == (
        "https://updates.example.org/index.json",
        "RWQf6LRCGA9i5==",
    )


@pytest.mark.parametrize(
    ("text", "host", "port", "url"),
    [
        ("127.0.0.1:8787", "127.0.0.1", 8787, "http://127.0.0.1:8787"),
        ("localhost:1", "localhost", 1, "http://localhost:1"),
        ("[::1]:65535", "::1", 65535, "http://[::1]:65535"),
        ("0.0.0.0:80", "0.0.0.0", 80, "http://127.0.0.1:80"),
        ("[::]:80", "::", 80, "http://[::1]:80"),
    ],
)
def test_bind(text: str, host: str, port: int, url: str) -> None:
    found = read(BIND=text).bind
    assert (found.host, found.port, found.url) == (host, port, url)


@pytest.mark.parametrize(
    ("bind", "hosts"),
    [
        ("0.0.0.0:80", ("localhost", "127.0.0.1", "[::1]")),
        ("192.0.2.7:80", ("192.0.2.7", "localhost", "127.0.0.1", "[::1]")),
        ("[2001:db8::1]:80", ("[2001:db8::1]", "localhost", "127.0.0.1", "[::1]")),
        ("ochat.local:80", ("ochat.local", "localhost", "127.0.0.1", "[::1]")),
    ],
)
def test_hosts_follow_the_address_unless_they_are_named(bind: str, hosts: tuple[str, ...]) -> None:
    assert read(BIND=bind).allowed_hosts == hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqlite:///srv/a.sqlite3", env.SqliteDatabase(path=Path("/srv/a.sqlite3"))),
        ("sqlite:////srv/a%20b.sqlite3", env.SqliteDatabase(path=Path("/srv/a b.sqlite3"))),
        ("sqlite:a.sqlite3", env.SqliteDatabase(path=CWD / "a.sqlite3")),
        ("postgresql:///ochat", env.PostgresDatabase(name="ochat")),
        (
            "postgres://me:p%40ss@db.example.org:5433/ochat?sslmode=require",
            env.PostgresDatabase(
                name="ochat",
                user="me",
                password="p@ss",
                host="db.example.org",
                port=5433,
                parameters={"sslmode": "require"},
            ),
        ),
        (
            "postgresql://me:@/ochat?host=/run/postgresql",
            env.PostgresDatabase(name="ochat", user="me", host="/run/postgresql"),
        ),
    ],
)
def test_database(text: str, expected: object) -> None:
    assert read(DATABASE_URL=text).database == expected


@pytest.mark.parametrize(
    ("text", "broker"),
    [
        ("redis://localhost:6379/2", "redis://localhost:6379/2"),
        ("rediss://:secret@redis.example.org", "rediss://:secret@redis.example.org"),
        ("unix:///run/valkey.sock", "redis+socket:///run/valkey.sock?virtual_host=0"),
        ("unix:///run/valkey.sock?db=3", "redis+socket:///run/valkey.sock?virtual_host=3"),
    ],
)
def test_redis(text: str, broker: str) -> None:
    found = read(REDIS_URL=text).redis
    assert found is not None
    assert (found.url, found.broker_url) == (text, broker)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file:///srv/files", env.FolderStorage(path=Path("/srv/files"))),
        ("s3://bucket", env.S3Storage(bucket="bucket", prefix="", endpoint_url=None)),
        (
            "s3://bucket/a/b?endpoint_url=https://minio.example.org:9000",
            env.S3Storage(bucket="bucket", prefix="a/b", endpoint_url="https://minio.example.org:9000"),
        ),
    ],
)
def test_storage(text: str, expected: object) -> None:
    assert read(STORAGE_URL=text).storage == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DATA_DIR", "a" * 100),
        ("DATA_DIR", "a\0b"),
        *(
            ("BIND", text)
            for text in ("8787", "localhost", "localhost:", "h:0", "h:65536", "h:x", "::1:80", "[::1]")
        ),
        ("DATABASE_URL", "mysql://localhost/ochat"),
        ("DATABASE_URL", "sqlite://"),
        ("DATABASE_URL", "sqlite:///"),
        ("DATABASE_URL", "sqlite://host/path"),
        ("DATABASE_URL", "sqlite:///:memory:?x=1"),
        ("DATABASE_URL", "postgresql://localhost"),
        ("DATABASE_URL", "postgresql://localhost:port/ochat"),
        ("DATABASE_URL", "postgresql://localhost/ochat?sslmod=require"),
        ("REDIS_URL", "localhost:6379"),
        ("REDIS_URL", "http://localhost"),
        ("REDIS_URL", "redis://localhost/ochat"),
        ("REDIS_URL", "redis://localhost:99999"),
        ("REDIS_URL", "unix://run/valkey.sock"),
        ("REDIS_URL", "unix:///run/valkey.sock?db=x"),
        ("REDIS_URL", "unix:///run/valkey.sock?password=x"),
        ("STORAGE_URL", "/srv/files"),
        ("STORAGE_URL", "file:///"),
        ("STORAGE_URL", "file://host/path"),
        ("STORAGE_URL", "s3://"),
        ("STORAGE_URL", "s3://bucket?region=x"),
        ("SECRET_KEY", "short"),
        ("SECRET_KEY_FALLBACKS", f"{KEY},short"),
        ("ALLOWED_HOSTS", "https://ochat.example.org"),
        ("ALLOWED_HOSTS", "ochat.example.org:80"),
        ("TRUSTED_ORIGINS", "ochat.example.org"),
        ("TRUSTED_ORIGINS", "https://ochat.example.org/"),
        ("TRUSTED_ORIGINS", "https://user@ochat.example.org"),
        ("PROXY_TLS_HEADER", "X Forwarded"),
        ("SHELL_USER", "Root User"),
        ("UPDATE_INDEX", "ftp://updates.example.org"),
        ("UPDATE_KEY", "not base64!"),
        ("MODEL_PROVIDER", "Open AI"),
        ("LOG_FORMAT", "xml"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_variable(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(**{name: text})
    line = str(refused.value)
    assert line.startswith(f"OCHAT_{name}: ")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SECRET_KEY", "hunter2"),
        ("DATABASE_URL", "postgresql://me:hunter2@localhost:x/ochat"),
        ("REDIS_URL", "redis://:hunter2@localhost/x"),
    ],
)
def test_a_refusal_shows_no_secret(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(**{name: text})
    assert "hunter2" not in str(refused.value)


def test_what_is_parsed_shows_no_secret() -> None:
    found = read(
        SECRET_KEY=KEY, DATABASE_URL="postgresql://me:hunter2@h/ochat", REDIS_URL="redis://:hunter2@h"
    )
    assert "hunter2" not in repr(found)
    assert KEY not in repr(found)


def test_a_key_and_a_file_of_one_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        read(SECRET_KEY=KEY, SECRET_KEY_FILE="/run/secrets/key")
