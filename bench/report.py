"""Figures and how they are shown.

Owns: the median over runs, ratios to floors, the table and the JSON. Does not own: what a figure is (`measures`).
"""

from __future__ import annotations

import os
import platform
import sqlite3
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

Comparison = Literal["under", "at most", "over"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be."""

    comparison: Comparison
    value: float

    def met_by(self, value: float) -> bool:
        """Tell whether a figure is as it should be."""
        match self.comparison:
            case "under":
                return value < self.value
            case "at most":
                return value <= self.value
            case "over":
                return value > self.value

    def __str__(self) -> str:
        signs = {"under": "<", "at most": "≤", "over": ">"}
        return f"{signs[self.comparison]} {self.value:g}"


@dataclass(slots=True)
class Figure:
    """One figure over all runs, with its floor where there is one."""

    name: str
    unit: str
    target: Target | None = None
    floor_name: str = ""
    values: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The median of the runs."""
        return median(self.values)

    @property
    def floor(self) -> float | None:
        """The median of the floor's runs."""
        return median(self.floors) if self.floors else None

    @property
    def ratio(self) -> float | None:
        """The figure in units of its floor: the median of the runs' own ratios, as the machine's speed drifts."""
        pairs = [value / floor for value, floor in zip(self.values, self.floors, strict=False) if floor]
        return median(pairs) if pairs else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.target.met_by(self.value)


class Report:
    """All figures of a benchmark, in the order in which they were first added."""

    def __init__(self) -> None:
        """Begin with none."""
        self._figures: dict[str, Figure] = {}

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        target: Target | None = None,
        floor: tuple[str, float] | None = None,
    ) -> None:
        """Add one run's value; `floor` is the floor's name and its value in the same unit."""
        figure = self._figures.get(name)
        if figure is None:
            figure = self._figures[name] = Figure(name, unit, target, floor[0] if floor else "")
        figure.values.append(value)
        if floor is not None:
            figure.floors.append(floor[1])

    @property
    def figures(self) -> list[Figure]:
        """Every figure."""
        return list(self._figures.values())

    def table(self) -> str:
        """Return what people read."""
        head = ("figure", "median", "min", "max", "", "target", "", "floor", "", "ratio")
        rows = [head, *(_row(figure) for figure in self.figures)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = []
        for row in rows:
            cells = (
                cell.rjust(width) if column in (1, 2, 3, 7, 9) else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join(cells).rstrip())
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "machine": machine(),
            "figures": [
                {
                    "name": figure.name,
                    "unit": figure.unit,
                    "value": figure.value,
                    "runs": figure.values,
                    "target": None if figure.target is None else str(figure.target),
                    "met": figure.met,
                    "floor": None
                    if figure.floor is None
                    else {"name": figure.floor_name, "value": figure.floor, "runs": figure.floors},
                    "ratio": figure.ratio,
                }
                for figure in self.figures
            ],
        }


def machine() -> dict[str, Any]:
    """Return what kind of machine this is."""
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def _row(figure: Figure) -> tuple[str, ...]:
    met = {None: "", True: "met", False: "MISSED"}[figure.met]
    floor = "" if figure.floor is None else _short(figure.floor)
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return (
        figure.name,
        _short(figure.value),
        _short(min(figure.values)),
        _short(max(figure.values)),
        figure.unit,
        "" if figure.target is None else str(figure.target),
        met,
        floor,
        figure.floor_name,
        ratio,
    )


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
