"""Column types of this app."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import models


class WordsField(models.TextField[Iterable[str], tuple[str, ...]]):
    """A few words from a closed vocabulary, or digests, in their order: a tuple in Python, separated by
    spaces in the store.
    """

    def from_db_value(
        self, value: str | None, _expression: object, _connection: object
    ) -> tuple[str, ...] | None:
        """Return the words of a stored text."""
        return None if value is None else tuple(value.split())

    def to_python(self, value: Any) -> Any:
        """Return the words of a text or of any iterable of words."""
        return tuple(value.split()) if isinstance(value, str) else tuple(value or ())

    def get_prep_value(self, value: Any) -> str | None:
        """Return the text that is stored."""
        return None if value is None else " ".join(self.to_python(value))

    def value_to_string(self, obj: models.Model) -> str:
        """Return the text for serialized fixtures."""
        return self.get_prep_value(self.value_from_object(obj)) or ""
