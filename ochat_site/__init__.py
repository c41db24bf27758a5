"""The edge: transports, RPC, dialects, capability packs, console, settings and wiring."""

VERSION = "0.1.0"
"""What this server calls itself; the same as in `pyproject.toml`, which a test asserts."""
