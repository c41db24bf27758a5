"""Ochat agent protocol 1.0: shapes, strict decoding, errors, handlers."""
