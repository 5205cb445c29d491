"""The file of a sweep, TOML: read, checked, and made into points. See lib/sweep.py for what it holds."""

from __future__ import annotations

import itertools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.config import check_seeds
from lib.sweep_points import ConfigPoint, NotebookPoint, Point

PLACES = ("x", "hue", "col", "row")
KEYS = {
    "config": {"env", "profile", "arm", "seeds", "split", "ks", "ts", "grid", "fixed", "figure", "slurm"},
    "notebook": {"notebook", "table", "value", "grid", "fixed", "figure", "slurm"},
}


@dataclass(frozen=True)
class Sweep:
    """A sweep file that was read. points: by name. grid: what varies. value: the column that is drawn. figure:
    {place: column}. slurm: options of that engine."""

    name: str
    points: dict[str, Point]
    grid: tuple[str, ...]
    value: str
    figure: dict[str, str]
    slurm: dict[str, Any]


def read_sweep(path: str | Path) -> Sweep:
    """Read and check a sweep file. Raises ValueError for anything in it that is wrong, before any work."""
    try:
        given = tomllib.loads(Path(path).read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    kind = "notebook" if "notebook" in given else "config"
    if unknown := sorted(set(given) - KEYS[kind]):
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; a {kind} sweep has {', '.join(sorted(KEYS[kind]))}")
    for key in ("notebook", "table", "value") if kind == "notebook" else ("env", "arm"):
        if type(given.get(key)) is not str:
            raise ValueError(f"{path}: {key} = {given.get(key)!r}: a {kind} sweep needs a string")
    grid, fixed = _flat(given.get("grid", {})), _flat(given.get("fixed", {}))
    for name, values in grid.items():
        if type(values) is not list or not values or any(v in values[:i] for i, v in enumerate(values)):
            raise ValueError(f"{path}: [grid] {name} = {values!r}: a list of different values")
    if not grid or (both := set(grid) & set(fixed)):
        raise ValueError(f"{path}: " + (f"{both.pop()} is in [grid] and in [fixed]" if grid else "[grid] is empty"))
    points = {}
    try:
        for values in itertools.product(*grid.values()):
            cell = dict(zip(grid, values, strict=True))
            for point in _points(kind, given, cell, fixed):
                point.check()
                name = _name(cell | ({"seed": point.seed} if kind == "config" else {}))
                points[f"{name}-{len(points)}" if name in points else name] = point
        figure = _figure(given, grid, kind)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return Sweep(Path(path).stem, points, tuple(grid), given.get("value", "success"), figure, given.get("slurm", {}))


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} of {"a": {"b": 1}}: TOML reads an unquoted `a.b = 1` as the latter."""
    out: dict[str, Any] = {}
    for name, value in table.items():
        out |= {f"{name}.{n}": v for n, v in _flat(value).items()} if type(value) is dict else {name: value}
    return out


def _points(kind: str, given: dict, cell: dict, fixed: dict) -> list[Point]:
    if kind == "notebook":
        return [NotebookPoint(given["notebook"], given["table"], fixed | cell)]
    about = {"profile": given.get("profile", "tiny"), "env": given["env"], "arm": given["arm"]}
    about |= {"values": fixed | cell, "split": given.get("split", "valid")}
    about |= {"ks": tuple(given.get("ks", [1])), "ts": tuple(given.get("ts", []))}
    return [ConfigPoint(**about, seed=s) for s in check_seeds(given.get("seeds", 2))]


def _name(values: dict[str, Any]) -> str:
    """A readable name that is also a file name: "grid-0.05,group_size-4,seed-0"."""
    return ",".join(re.sub(r"[^\w.]+", "-", f"{n.rpartition('.')[2]}-{v}") for n, v in values.items())[:150]


def _figure(given: dict, grid: dict[str, list], kind: str) -> dict[str, str]:
    """{place: column}: as the file says, and what else varies in the places that are left."""
    figure = given.get("figure", {})
    if bad := sorted(set(figure) - set(PLACES)):
        raise ValueError(f"[figure] {bad[0]}: the places are {', '.join(PLACES)}")
    varied = [n for n, values in grid.items() if len(values) > 1] or list(grid)
    if kind == "config":  # no ts: those of the experiment's tables
        varied += ["T"] * (len(given.get("ts", [])) != 1) + ["K"] * (len(given.get("ks", [1])) > 1)
    left = [n for n in varied if n not in figure.values()]
    free = [place for place in PLACES if place not in figure]
    if len(left) > len(free):
        raise ValueError(f"{', '.join(varied)} vary, and a figure has the places {', '.join(PLACES)}: hold one fixed")
    return figure | dict(zip(free, left, strict=False))
