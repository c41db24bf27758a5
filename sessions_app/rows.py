"""Rows of the hot path, with statements written once per process.

Owns: inserting, updating and loading whole rows of a model by SQL that is built from the model the first time and then kept.
Does not own: anything that filters in other ways, joins or aggregates, which is the ORM's; nor transactions and locks.

Why it exists: most of the time of a short ORM statement goes into composing its SQL again (measured: 0.40 ms of processor time
for a select by key through a queryset, 0.04 ms through a kept statement). A turn is about forty such statements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

from django.db import connection, models

M = TypeVar("M", bound=models.Model)

Converter = Callable[[Any], Any]

MAX_PARAMETERS = 32_766
"""What a statement takes in a SQLite that was built with its defaults; PostgreSQL's protocol takes 65,535."""


class Select(Generic[M]):
    """A kept query for whole rows of one model.

    `where` is SQL with `%s` for each parameter; columns go by their names. `lock` asks for the rows' locks where the database
    has them (SQLite's writers hold the whole store instead). `order` is the SQL of an ORDER BY.
    """

    def __init__(self, model: type[M], where: str, *, order: str = "", lock: bool = False) -> None:
        self._model = model
        self._tail = f" WHERE {where}" + (f" ORDER BY {order}" if order else "")
        self._lock = lock

    def all(self, *params: Any) -> list[M]:
        """Return the rows that match, as unshared instances."""
        with connection.cursor() as cursor:
            cursor.execute(self._sql(), params)
            found = cursor.fetchall()
        make = self._model.from_db
        names, converters = _columns(self._model, connection.vendor)
        return [make(connection.alias, names, _converted(values, converters)) for values in found]

    def first(self, *params: Any) -> M | None:
        """Return one row that matches, or None."""
        rows = self.all(*params)
        return rows[0] if rows else None

    def _sql(self) -> str:
        return _select_sql(self._model, connection.vendor) + self._tail + _lock_sql(lock=self._lock)


def insert(rows: Sequence[models.Model]) -> None:
    """Insert rows of one model, in as few statements as the database allows. Keys that the database gives are not read back.

    Raises django.db.IntegrityError like any insert.
    """
    if not rows:
        return
    fields = _inserted(type(rows[0]))
    one = f"({', '.join(['%s'] * len(fields))})"
    at_once = MAX_PARAMETERS // len(fields)
    with connection.cursor() as cursor:
        for start in range(0, len(rows), at_once):
            batch = rows[start : start + at_once]
            statement = _insert_sql(type(rows[0]), connection.vendor) + ", ".join([one] * len(batch))
            cursor.execute(statement, [_prepared(field, row) for row in batch for field in fields])
    for row in rows:
        row._state.adding = False
        row._state.db = connection.alias


def update(row: models.Model, columns: Sequence[str]) -> None:
    """Write the named columns (attribute names as stored, e.g. `process_id`) of one row."""
    model = type(row)
    fields = [_field(model, name) for name in columns]
    quote = connection.ops.quote_name
    assignments = ", ".join(f"{quote(_column(field))} = %s" for field in fields)
    key = model._meta.pk
    statement = f"UPDATE {quote(model._meta.db_table)} SET {assignments} WHERE {quote(_column(key))} = %s"  # noqa: S608 - names
    with connection.cursor() as cursor:
        cursor.execute(statement, [*(_prepared(field, row) for field in fields), _prepared(key, row)])


def _prepared(field: models.Field[Any, Any], row: models.Model) -> Any:
    return field.get_db_prep_save(getattr(row, field.attname), connection)


def _converted(values: Sequence[Any], converters: Sequence[Converter | None]) -> list[Any]:
    return [
        value if convert is None else convert(value)
        for value, convert in zip(values, converters, strict=True)
    ]


def _column(field: models.Field[Any, Any]) -> str:
    return cast("str", field.column)


@lru_cache(maxsize=512)
def _field(model: type[models.Model], attname: str) -> models.Field[Any, Any]:
    return next(field for field in model._meta.concrete_fields if field.attname == attname)


@lru_cache(maxsize=64)
def _inserted(model: type[models.Model]) -> tuple[models.Field[Any, Any], ...]:
    """The columns that an insert names: all but a key that the database makes."""
    return tuple(field for field in model._meta.concrete_fields if not isinstance(field, models.AutoField))


@lru_cache(maxsize=64)
def _insert_sql(model: type[models.Model], _vendor: str) -> str:
    quote = connection.ops.quote_name
    columns = ", ".join(quote(_column(field)) for field in _inserted(model))
    return f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES "  # noqa: S608 - names of the model


@lru_cache(maxsize=64)
def _select_sql(model: type[models.Model], _vendor: str) -> str:
    quote = connection.ops.quote_name
    columns = ", ".join(quote(_column(field)) for field in model._meta.concrete_fields)
    return f"SELECT {columns} FROM {quote(model._meta.db_table)}"  # noqa: S608 - names of the model


def _lock_sql(*, lock: bool) -> str:
    return " FOR UPDATE" if lock and connection.features.has_select_for_update else ""


@lru_cache(maxsize=64)
def _columns(model: type[models.Model], _vendor: str) -> tuple[tuple[str, ...], tuple[Converter | None, ...]]:
    fields = model._meta.concrete_fields
    return tuple(field.attname for field in fields), tuple(_converter(field) for field in fields)


def _converter(field: models.Field[Any, Any]) -> Converter | None:
    """Return what turns the database's value into the field's, or None where they are the same."""
    expression = field.get_col(field.model._meta.db_table)
    steps = [
        *connection.ops.get_db_converters(expression),
        *field.get_db_converters(connection),
    ]
    if not steps:
        return None

    def convert(value: Any) -> Any:
        for step in steps:
            value = step(value, expression, connection)
        return value

    return convert
