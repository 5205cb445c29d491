"""The points of a sweep: what each of them is, the checks before it is run, and the rows of the table that it leaves.

    ConfigPoint      one training run of an experiment with fields changed; its rows: success at given K and T
    NotebookPoint    one run of a notebook with parameters; its rows: those of a table that the notebook saves

Run as a program this works off one point: `python -m lib.sweep_points FILE.json`. A point has a process of its own on
every engine, so that one that crashes or is killed takes nothing else with it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from lib.config import ROOT, Experiment
from lib.envs.base import env_class
from lib.manifest import file_hash, source_hash, step_key
from lib.parameters import Parameter, check_parameter, find_parameter, read_parameters
from lib.profiles import experiment
from lib.tables import write_whole
from lib.worker import end_with_driver, start_worker

VARIED = ("env_config", "base", "model", "revision", "policy", "train", "evaluation", "train_tasks", "probe_tasks")
ELSEWHERE = {  # fields that a run takes from somewhere else: to change them here would change nothing
    "train.seed": "`seeds` of the sweep file",
    "train.budget": "the arm: use arm.budget",
    "train.algorithm": "the arm: use arm.algorithm",
    "train.beta": "the arm: use arm.beta",
    "arm.budget.every": "train.updates (a stage takes a quarter of them)",
    "arm.label": "lib.config.ARMS",
}


def vary(x: Experiment, arm: str, values: dict[str, Any]) -> Experiment:
    """`x` with the one arm `arm` and other values of fields, given as dotted paths: "train.group_size",
    "evaluation.tasks", "env_config.size", or of the arm itself "arm.budget.grid", "arm.algorithm".

    Raises ValueError for a path that there is not, that takes effect elsewhere, or a value of another type.
    """
    x = replace(x, arms=(arm,), analysed=())
    parts = {"arm": x.arm(arm)} | {name: getattr(x, name) for name in VARIED}
    for path in values:
        for taken, where in ELSEWHERE.items():
            if path == taken or path.startswith(f"{taken}."):
                raise ValueError(f"{path} has no effect on a run, which takes it from {where}")
    changed = {}
    for name, change in _nested(values).items():
        if name not in parts:
            raise ValueError(f"no field {name!r}; a path begins with one of {', '.join(parts)}")
        changed[name] = _changed(parts[name], change, name)
    return replace(x, varied=((arm, changed.pop("arm", parts["arm"])),), **changed)


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *parents, last = path.split(".")
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise ValueError(f"{path}: a field that it belongs to is given too")
        if last in at:
            raise ValueError(f"{path} is given, and a field of it too")
        at[last] = value
    return tree


def _changed(value: Any, change: Any, path: str) -> Any:
    if is_dataclass(value):
        names = [f.name for f in fields(value)]
        if not isinstance(change, dict):
            raise ValueError(f"{path} is no single value; vary one of its fields: {', '.join(names)}")
        if unknown := sorted(set(change) - set(names)):
            raise ValueError(f"no field {path}.{unknown[0]}; {path} has {', '.join(names)}")
        return replace(value, **{n: _changed(getattr(value, n), c, f"{path}.{n}") for n, c in change.items()})
    if type(value) is tuple:
        return tuple(check_parameter(path, change, Parameter(list(value), ("list",))))
    return check_parameter(path, change, Parameter(value, (type(value).__name__,)))


@dataclass(frozen=True)
class ConfigPoint:
    """One seed of one cell of a grid over config fields.

    profile, env, arm: which experiment. values: dotted paths and values, see `vary`. seed: of training. split: "valid"
    (to choose something by the result) or "test" (to report it). ks, ts: the K and T of the rows; no ts: the
    budgets of the experiment's tables.
    """

    profile: str
    env: str
    arm: str
    values: dict[str, Any]
    seed: int
    split: str = "valid"
    ks: tuple[int, ...] = (1,)
    ts: tuple[int, ...] = ()

    def experiment(self) -> Experiment:
        return vary(experiment(self.profile, self.env), self.arm, self.values)

    def check(self) -> None:
        """Raises ValueError for whatever is known to be wrong before the run starts."""
        x = self.experiment()
        x.train_config(self.arm, self.seed)
        if self.split not in ("valid", "test"):
            raise ValueError(f"split {self.split!r}: 'valid' (to choose by it) or 'test' (to report it)")
        for name, given, most in (("ks", self.ks, x.evaluation.samples), ("ts", self.ts, x.t_max)):
            if any(type(v) is not int or not 1 <= v <= most for v in given) or len(set(given)) < len(given):
                raise ValueError(f"{name} = {list(given)}: different whole numbers from 1 to {most}")
        if not self.ks:
            raise ValueError("ks is empty: give at least one K")

    def key(self) -> str:
        return step_key("sweep", asdict(self), source_hash(*_library(), env_class(self.env).__module__), [])

    def rows(self, folder: Path) -> list[dict[str, Any]]:
        """One row for each K and T: success, the mean of Pass@(K,T) over tasks, and the tokens trained on."""
        from lib.stages import surface, tokens_trained

        x = self.experiment()
        ts = self.ts or x.grid
        found = surface(x, self.arm, self.seed, self.ks, ts, self.split).mean(0)
        about = {"seed": self.seed, "tokens": tokens_trained(x, self.arm, self.seed)}
        at = [(i, j) for i in range(len(self.ks)) for j in range(len(ts))]
        return [{"K": self.ks[i], "T": ts[j], "success": float(found[i, j])} | about for i, j in at]


@dataclass(frozen=True)
class NotebookPoint:
    """One run of a notebook. notebook: the name of one of notebooks/ or a path. table: the name of the table, saved by
    the notebook with `save_table` or `save_figure`, whose rows are kept. values: parameters of the notebook."""

    notebook: str
    table: str
    values: dict[str, Any] = field(default_factory=dict)

    def path(self) -> Path:
        """The notebook's file. Raises ValueError where there is none."""
        path = ROOT / (self.notebook if "/" in self.notebook else f"notebooks/{self.notebook}.ipynb")
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in (ROOT / "notebooks").glob("[0-9]*.ipynb")))
            raise ValueError(f"no notebook {self.notebook!r}; there are {known}, or give the path of another")
        return path

    def check(self) -> None:
        """Raises ValueError for an unknown notebook or parameter, or a value of another type."""
        import nbformat

        specs = read_parameters(nbformat.read(self.path(), as_version=4))
        for name, value in self.values.items():
            check_parameter(name, value, find_parameter(specs, name))

    def key(self) -> str:
        return step_key("sweep", asdict(self), source_hash(*_library()), [file_hash(self.path())])

    def rows(self, folder: Path) -> list[dict[str, Any]]:
        """The rows of the table. The executed copy, tables and figures stay in `folder`. Raises NotebookFailed, and
        ValueError where the notebook saves no such table."""
        import pandas as pd

        from lib.notebook import run_notebook

        os.environ["RESULTS_DIR"] = str(folder)  # this process has no other point
        run_notebook(self.path(), folder / "executed", self.values)
        saved = {p.stem: p for p in folder.glob("**/*.csv")}
        if self.table not in saved:
            raise ValueError(f"{self.notebook} saved no table {self.table!r}; it saved {', '.join(sorted(saved))}")
        df = pd.read_csv(saved[self.table])
        if both := set(df) & set(self.values):
            raise ValueError(f"table {self.table} has a column {both.pop()!r}, as the parameter is called")
        return df.to_dict("records")


Point = ConfigPoint | NotebookPoint


def _library() -> list[str]:
    """All modules of lib: a notebook may use any of them, and what is expensive is in the step cache anyway."""
    files = sorted((ROOT / "lib").rglob("*.py"))
    return [".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in files]


def write_todo(point: Point, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"kind": type(point).__name__} | asdict(point), indent=1) + "\n")


def read_todo(path: Path) -> Point:
    about = json.loads(path.read_text("utf-8"))
    kind = {c.__name__: c for c in (ConfigPoint, NotebookPoint)}[about.pop("kind")]
    return kind(**{n: tuple(v) if n in ("ks", "ts") else v for n, v in about.items()})


def main(argv: list[str] | None = None) -> int:
    """Work off the point in FILE.json; its rows or its error go to FILE.result.json, what it prints to FILE.log."""
    (todo,) = map(Path, sys.argv[1:] if argv is None else argv)
    log = os.open(todo.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    start, point = time.monotonic(), read_todo(todo)
    start_worker() if isinstance(point, ConfigPoint) else end_with_driver()  # a notebook's kernel loads torch itself
    done: dict[str, Any] = {"key": point.key()}
    try:
        done["rows"] = point.rows(todo.with_suffix(""))
    except Exception as error:
        import traceback

        traceback.print_exc()
        done["error"] = f"{type(error).__name__}: {error}"
    done["seconds"] = round(time.monotonic() - start, 2)
    write_whole(todo.with_suffix(".result.json"), json.dumps(done) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
