"""Rows of the hot path, with statements written once per process.

Owns: inserting, updating and loading whole rows of a model by SQL that is built from the model the first time and then kept,
and what a value is on its way between a field and the driver.
Does not own: anything that filters in other ways, joins or aggregates, which is the ORM's; nor transactions and locks.

Why it exists: most of the time of a short ORM statement goes into composing its SQL again and into asking each field anew how
its values are stored (measured: 0.40 ms of processor time for a select by key through a queryset, 0.02 ms through a kept
statement). A turn is about forty such statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.base import ModelState

M = TypeVar("M", bound=models.Model)

Convert = Callable[[Any], Any]

MAX_PARAMETERS = 32_766
"""What a statement takes in a SQLite that was built with its defaults; PostgreSQL's protocol takes 65,535."""

_TAKEN_AS_THEY_ARE = frozenset(
    {
        "BigAutoField",
        "BinaryField",
        "BooleanField",
        "CharField",
        "PositiveBigIntegerField",
        "PositiveIntegerField",
        "TextField",
    }
)
"""Fields whose values are text, bytes, whole numbers and booleans, which both drivers take, and null."""


LIGHT_BYTES = 64 * 1024
"""What a `weighed` query reads of a row at once; what is heavier is read by itself."""


class Select(Generic[M]):
    """A kept query for whole rows of one model.

    `where` is SQL with `%s` for each parameter; columns go by their names. `lock` asks for the rows' locks where the database
    has them (SQLite's writers hold the whole store instead). `order` is the SQL of an ORDER BY. `heavy` names a column of
    bytes whose values may be so large that many of them together do not belong into memory; see `weighed`.
    """

    def __init__(
        self, model: type[M], where: str, *, order: str = "", lock: bool = False, heavy: str = ""
    ) -> None:
        self._model = model
        self._heavy = heavy
        self._where = f" WHERE {where}"
        self._order = f" ORDER BY {order}" if order else ""
        self._lock = lock

    def all(self, *params: Any, at_most: int | None = None) -> list[M]:
        """Return the rows that match, or the first `at_most` of them, as unshared instances."""
        database = _database()
        table = _table(self._model, database.vendor)
        statement = table.select + self._where + self._order
        if at_most is not None:
            statement += " LIMIT %s"
            params = (*params, at_most)
        if self._lock and database.features.has_select_for_update:
            statement += " FOR UPDATE"
        with database.cursor() as cursor:
            cursor.execute(statement, params)
            found = cursor.fetchall()
        return [self._instance(table, values, database.alias) for values in found]

    def weighed(self, *params: Any, at_most: int) -> Iterator[tuple[int, Callable[[], M | None]]]:
        """Yield the first `at_most` rows that match: what the heavy column of each takes in bytes, and a function that returns
        the row, or None when it is gone by now.

        One statement, which reads at most `LIGHT_BYTES` of a row, and one more for each heavier row that is asked for.
        """
        database = _database()
        table = _table(self._model, database.vendor)
        heavy = table.by_attname[self._heavy]
        statement = (
            _weighing(self._model, self._heavy, database.vendor) + self._where + self._order + " LIMIT %s"
        )
        with database.cursor() as cursor:
            cursor.execute(statement, (*params, at_most))
            found = cursor.fetchall()
        place = table.columns.index(heavy)
        for *values, size in found:
            row = self._instance(table, values, database.alias)
            yield size, partial(self._loaded, row, whole=values[place] is not None)

    def within(self, *params: Any, at_most: int, max_bytes: int) -> list[M]:
        """Return the first `at_most` rows that match, as far as their heavy columns take `max_bytes`, and one row beyond."""
        rows: list[M] = []
        for size, load in self.weighed(*params, at_most=at_most):
            row = load()
            if row is None or max_bytes < 0:
                break
            rows.append(row)
            max_bytes -= size
        return rows

    def _loaded(self, row: M, *, whole: bool) -> M | None:
        return row if whole else self._whole(row)

    def _whole(self, row: M) -> M | None:
        """Read a row again, with its heavy column."""
        database = _database()
        table = _table(self._model, database.vendor)
        with database.cursor() as cursor:
            cursor.execute(f"{table.select} WHERE {table.key.name} = %s", [row.pk])
            found = cursor.fetchone()
        return None if found is None else self._instance(table, found, database.alias)

    def first(self, *params: Any) -> M | None:
        """Return one row that matches, or None."""
        rows = self.all(*params)
        return rows[0] if rows else None

    def any(self, *params: Any) -> bool:
        """Tell whether a row matches."""
        return self._value("1", " LIMIT 1", params) is not None

    def count(self, *params: Any) -> int:
        """Return how many rows match."""
        return int(self._value("COUNT(*)", "", params))

    def _value(self, expression: str, limit: str, params: Sequence[Any]) -> Any:
        """Return one value of the first row that an expression gives, or None without one."""
        database = _database()
        table = _table(self._model, database.vendor)
        with database.cursor() as cursor:
            cursor.execute(f"SELECT {expression} FROM {table.name}{self._where}{limit}", params)  # noqa: S608 - of ours
            found = cursor.fetchall()
        return found[0][0] if found else None

    def _instance(self, table: _Table, values: Sequence[Any], alias: str) -> M:
        """Make what `Model.from_db` makes, without looking for keyword arguments, defaults and receivers of signals."""
        instance = self._model.__new__(self._model)
        instance._state = _state(alias)
        stored = vars(instance)
        for column, value in zip(table.columns, values, strict=True):
            stored[column.attname] = value if column.read is None or value is None else column.read(value)
        return instance


def insert(rows: Sequence[models.Model]) -> None:
    """Insert rows of one model, in as few statements as the database allows. Keys that the database gives are not read back.

    Raises django.db.IntegrityError like any insert.
    """
    if not rows:
        return
    database = _database()
    table = _table(type(rows[0]), database.vendor)
    one = f"({', '.join(['%s'] * len(table.given))})"
    at_once = MAX_PARAMETERS // len(table.given)
    with database.cursor() as cursor:
        for start in range(0, len(rows), at_once):
            batch = rows[start : start + at_once]
            params = [column.written(row) for row in batch for column in table.given]
            cursor.execute(table.insert + ", ".join([one] * len(batch)), params)
    for row in rows:
        row._state = _state(database.alias)


def update(row: models.Model, columns: Sequence[str]) -> None:
    """Write the named columns (attribute names as stored, e.g. `process_id`) of one row."""
    update_all([row], columns)


def update_all(rows: Sequence[models.Model], columns: Sequence[str]) -> None:
    """Write the named columns of rows of one model, each with its own values."""
    if not rows:
        return
    database = _database()
    table = _table(type(rows[0]), database.vendor)
    written = [table.by_attname[name] for name in columns]
    assignments = ", ".join(f"{column.name} = %s" for column in written)
    statement = f"UPDATE {table.name} SET {assignments} WHERE {table.key.name} = %s"  # noqa: S608 - names of the model
    params = [[column.written(row) for column in (*written, table.key)] for row in rows]
    with database.cursor() as cursor:
        if len(params) == 1:
            cursor.execute(statement, params[0])
        else:
            cursor.executemany(statement, params)


@dataclass(frozen=True, slots=True)
class _Column:
    attname: str
    name: str
    """Quoted."""
    write: Convert | None
    """Makes of the field's value what the driver takes; None where they are the same."""
    read: Convert | None
    """The other way; not asked about null."""

    def written(self, row: models.Model) -> Any:
        """Return a row's value for this column as the driver takes it."""
        value = vars(row)[self.attname]
        return value if self.write is None else self.write(value)


@dataclass(frozen=True, slots=True)
class _Table:
    """A model as one kind of database stores it."""

    name: str
    """Quoted."""
    key: _Column
    columns: Sequence[_Column]
    given: Sequence[_Column]
    """What an insert names: all but a key that the database makes."""
    by_attname: dict[str, _Column]
    select: str
    insert: str


@lru_cache(maxsize=64)
def _table(model: type[models.Model], vendor: str) -> _Table:
    quote = _database().ops.quote_name
    fields = model._meta.concrete_fields
    columns = {
        field.attname: _Column(
            attname=field.attname,
            name=quote(cast("str", field.column)),
            write=_write(field, vendor),
            read=_read(field, vendor),
        )
        for field in fields
    }
    given = [columns[field.attname] for field in fields if not isinstance(field, models.AutoField)]
    name = quote(model._meta.db_table)
    return _Table(
        name=name,
        key=columns[model._meta.pk.attname],
        columns=list(columns.values()),
        given=given,
        by_attname=columns,
        select=f"SELECT {_names(list(columns.values()))} FROM {name}",  # noqa: S608 - names of the model
        insert=f"INSERT INTO {name} ({_names(given)}) VALUES ",  # noqa: S608 - names of the model
    )


@lru_cache(maxsize=16)
def _weighing(model: type[models.Model], heavy: str, vendor: str) -> str:
    """Return the beginning of a `weighed` query: every column, the heavy one only where it is light, and its size."""
    table = _table(model, vendor)
    name = table.by_attname[heavy].name
    # Of bytes, `length` is their number, and neither database reads them to tell it.
    light = f"CASE WHEN length({name}) <= {LIGHT_BYTES} THEN {name} END"
    columns = ", ".join(light if column.name == name else column.name for column in table.columns)
    return f"SELECT {columns}, length({name}) FROM {table.name}"  # noqa: S608 - names of the model


def _names(columns: Sequence[_Column]) -> str:
    return ", ".join(column.name for column in columns)


def _write(field: models.Field[Any, Any], vendor: str) -> Convert | None:
    kind = _kind(field)
    if kind in _TAKEN_AS_THEY_ARE:
        return None
    if kind == "DateTimeField":
        return _instant_as_text if vendor == "sqlite" else None
    return lambda value: field.get_db_prep_save(value, _database())


def _read(field: models.Field[Any, Any], vendor: str) -> Convert | None:
    if vendor == "sqlite":
        kind = _kind(field)
        if kind == "DateTimeField":
            return _instant
        if kind == "BooleanField":
            return bool
    database = _database()
    expression = field.get_col(field.model._meta.db_table)
    steps = [*database.ops.get_db_converters(expression), *field.get_db_converters(database)]
    if not steps:
        return None

    def convert(value: Any) -> Any:
        for step in steps:
            value = step(value, expression, database)
        return value

    return convert


def _kind(field: models.Field[Any, Any]) -> str:
    """Return how Django calls what is stored, of a foreign key what its target's key is."""
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    return field.get_internal_type()


def _instant_as_text(value: datetime | None) -> str | None:
    """Write an aware datetime as Django's backend for SQLite does."""
    return None if value is None else str(value.astimezone(UTC).replace(tzinfo=None))


def _instant(value: datetime) -> datetime:
    """Read what that wrote; the driver has made a naive datetime of the text."""
    return value.replace(tzinfo=UTC)


def _state(alias: str) -> ModelState:
    """Return the state of a row that is stored."""
    state = ModelState()
    state.adding, state.db = False, alias
    return state


def _database() -> BaseDatabaseWrapper:
    """Return this thread's connection itself: each use of Django's `connection` looks it up again."""
    return connections[DEFAULT_DB_ALIAS]
