"""Mutations, one function each, by family. Only these, inside a session transaction, emit events."""
