"""Commands that people type."""
