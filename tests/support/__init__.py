"""Real parts for tests: processes, Valkey, PostgreSQL."""
