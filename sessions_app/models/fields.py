"""Column types that several tables share."""

from __future__ import annotations

from typing import Any

from django.db import models

ID_LENGTH = 96
"""No id on the wire is longer (wire 1)."""


class IdField(models.CharField[str, str]):
    """A typed identifier, `<prefix>_<token>`."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("max_length", ID_LENGTH)
        super().__init__(**options)

    def deconstruct(self) -> Any:
        """Leave the fixed length out of migrations."""
        name, path, args, kwargs = super().deconstruct()
        kwargs.pop("max_length", None)
        return name, path, args, kwargs


class EncodedField(models.BinaryField[bytes, bytes]):
    """A record as the JSON bytes that are sent: written once, passed through to every reader, never decoded to be stored."""

    def from_db_value(self, value: Any, _expression: object, _connection: object) -> bytes | None:
        """Return bytes whatever the driver hands out."""
        return None if value is None else bytes(value)


class OptionalEncodedField(models.BinaryField[bytes | None, bytes | None]):
    """The same where there may be none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"null": True, **options})

    from_db_value = EncodedField.from_db_value
