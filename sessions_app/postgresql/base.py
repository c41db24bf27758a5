"""Django's PostgreSQL backend, in which waiting for a lock ends.

Owns the time limit, the setting `session_lock_timeout_ms`; what its end is called is decided in
`sessions_app/store.py`.
"""

from django.db.backends.postgresql import base

from sessions_app import limits


class DatabaseWrapper(base.DatabaseWrapper):
    """One connection, whose statements wait for a row's lock no longer than a session's lock may take."""

    def init_connection_state(self) -> None:
        """Set the time limit on the new connection."""
        super().init_connection_state()
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, false)",
                [f"{limits.server().session_lock_timeout_ms}ms"],
            )
