"""Django settings: what the environment (`env.py`) means to Django and its apps.

Owns no value that a person chooses: those are `OCHAT_*` variables, read into `ENV`, and the catalog's
`[server]` table, read by `sessions_app/limits.py`.
"""

import os
from pathlib import Path
from typing import Any

import django_stubs_ext

from ochat_site import VERSION, env, logs, secrets

# Lets `ModelAdmin[...]`, `CharField[...]` and the like carry the type arguments that mypy asks for.
django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent
ENV = env.read(os.environ, Path.cwd())

# Identity of the installation

SECRET_KEY = secrets.secret_key(ENV)
SECRET_KEY_FALLBACKS = list(ENV.secret_key_fallbacks)
DEBUG = False
ALLOWED_HOSTS = list(ENV.allowed_hosts)

# Parts

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "guardian",
    "sessions_app",
    "permissions_app",
    "jobs_app",
    "ochat_site",
]
MIDDLEWARE = [
    "ochat_site.middleware.TrustedProxyTls",
    "django.middleware.security.SecurityMiddleware",
    "ochat_site.middleware.SecurityHeaders",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "ochat_site.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Store


def database(found: env.SqliteDatabase | env.PostgresDatabase) -> dict[str, Any]:
    """The entry of `DATABASES` for what `OCHAT_DATABASE_URL` names."""
    # Connections belong to the threads of our executor and live as long as they do (sessions_app/db.py).
    shared: dict[str, Any] = {"CONN_MAX_AGE": None}
    if isinstance(found, env.SqliteDatabase):
        return {**shared, "ENGINE": "sessions_app.sqlite", "NAME": str(found.path)}
    return {
        **shared,
        "ENGINE": "sessions_app.postgresql",
        "NAME": found.name,
        "USER": found.user,
        "PASSWORD": found.password,
        "HOST": found.host,
        "PORT": found.port or "",
        "OPTIONS": dict(found.parameters),
    }


def _file_storage() -> dict[str, Any]:
    storage = ENV.storage
    if isinstance(storage, env.FolderStorage):
        return {
            "BACKEND": "sessions_app.files.DurableFolder",
            "OPTIONS": {"location": storage.path, "base_url": None},
        }
    return {
        "BACKEND": "storages.backends.s3.S3Storage",
        "OPTIONS": {
            "bucket_name": storage.bucket,
            "location": storage.prefix,
            "endpoint_url": storage.endpoint_url,
            "file_overwrite": False,
        },
    }


DATABASES = {"default": database(ENV.database)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STORAGES = {
    "default": _file_storage(),
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# Threads that do the ORM work of one process. Writers of one store wait for each other anyway; more
# threads would only hold more connections.
DATABASE_THREADS = 8

# Broker and channel layer: `up` starts one and names it, a larger installation names its own.

CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [ENV.redis.url], "prefix": "ochat"},
    }
    if ENV.redis is not None
    else {"BACKEND": "channels.layers.InMemoryChannelLayer"}
}

# People

AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "guardian.backends.ObjectPermissionBackend",
]
ANONYMOUS_USER_NAME = None
GUARDIAN_MONKEY_PATCH_USER = False
GUARDIAN_MONKEY_PATCH_GROUP = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
]
LOGIN_URL = "admin:login"

# HTTP

CSRF_TRUSTED_ORIGINS = list(ENV.trusted_origins)
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Strict"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_NAME = "ochat_session"
CSRF_COOKIE_NAME = "ochat_csrf"
SECURE_PROXY_SSL_HEADER = (
    (f"HTTP_{ENV.proxy_tls_header.name.upper().replace('-', '_')}", ENV.proxy_tls_header.value)
    if ENV.proxy_tls_header is not None
    else None
)
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
STATIC_URL = "/static/"
# Static files are read from the packages that ship them: there is no collecting step to forget.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Ochat",
    "DESCRIPTION": "Durable AI-agent sessions: the Ochat agent protocol 1.0 over HTTP.",
    "VERSION": VERSION,
    "OAS_VERSION": "3.1.0",
    "POSTPROCESSING_HOOKS": ["ochat_site.openapi.add_routes"],
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# Language, time, logs

LANGUAGE_CODE = "en-us"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
LOGGING = logs.configuration(ENV.log_format)
