"""InterCode-SQL: explore a database with SQL, then submit the last result (arXiv 2306.14898).

Scores, official and strict: lib/envs/sql_score.py. An episode is solved if its score is 1.
Tasks: "procedural" (lib/envs/sql_tasks.py, compact observations) or "spider" (lib/envs/sql_data.py, MySQL's rows as
InterCode shows them). Engine and guards: lib/envs/sql_engine.py. The agent sees one database; USE of another fails.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from lib.envs import sql_data, sql_tasks
from lib.envs.base import SPLITS, Env, Step, Task
from lib.envs.sql_dialect import is_ordered, parse
from lib.envs.sql_engine import DESC, TABLES, Database, SqlError, build, run
from lib.envs.sql_score import official_score, strict_score
from lib.envs.sql_tasks import SqlConfig

__all__ = ["Sql", "SqlConfig", "official_score", "setup", "strict_score"]

SHOWN_ROWS, SHOWN_CHARACTERS, SHOWN_ERROR = 50, 1000, 300  # of a result and of an error in an observation
_RULES = (
    "Answer the question with SQL, one statement a turn: SHOW TABLES, DESC table or SELECT. "
    "Reply submit when the last result is the answer."
)


@dataclass(frozen=True)
class Setup:
    """A task made ready: its database, the gold's rows, whether the gold orders them."""

    database: Database
    gold: list[tuple]
    ordered: bool


@lru_cache(maxsize=4096)
def setup(task: Task) -> Setup:
    """Build or look up the task's database and run its gold, once per process. Raises ValueError for a bad task."""
    data = task.data
    if not {"db", "question", "gold"} <= data.keys():
        raise ValueError(f"task {task.id}: data must have db, question and gold (and script, or a Spider database)")
    if "script" not in data and data["db"] not in sql_data.databases():
        raise ValueError(f"task {task.id}: unknown database {data['db']!r}")
    database = build(data["db"], data["script"]) if "script" in data else sql_data.databases()[data["db"]]
    try:
        return Setup(database, run(database, data["gold"]) or [], is_ordered(data["gold"]))
    except SqlError as e:
        raise ValueError(f"task {task.id}: the gold fails: {e}: {data['gold']}") from None


@lru_cache(maxsize=64)
def _result(task: Task, statement: str) -> list[tuple] | None | SqlError:
    """What the task's database says to a statement: `run`, whose error is returned. Samples of a task repeat each
    other's statements, and the measures ask for what is played next; a result is at most 1 MB of text."""
    try:
        return run(setup(task).database, statement)
    except SqlError as error:
        return error


class Sql(Env):
    """See the module's docstring. A turn's reward is 0 but for submit, whose reward is the score."""

    name = "sql"
    title = "InterCode-SQL"
    Config = SqlConfig

    def __init__(self, config: SqlConfig):
        if not isinstance(config, SqlConfig):
            raise ValueError(f"config of type {type(config).__name__}: must be SqlConfig")
        super().__init__(config)
        self._task: Task | None = None

    @classmethod
    def tasks(cls, config: SqlConfig, split: str, n: int) -> tuple[Task, ...]:
        """The first n tasks. Procedural: split by the gold's SHA-256. Spider: by database, in the file's order."""
        if split not in SPLITS or type(n) is not int or n < 1:
            raise ValueError(f"split={split!r}, n={n!r}: split must be one of {', '.join(SPLITS)}, n at least 1")
        if config.task_set == "procedural":
            return sql_tasks.procedural_tasks(split, n, config.tables, config.rows, config.kinds)
        names = sql_data.split_databases(split)
        found = [t for t in sql_data.spider_tasks(config.questions, config.spider_json) if t.data["db"] in names]
        if config.score == "strict":
            found = [t for t in found if setup(t).gold]
        if n > len(found):
            raise ValueError(
                f"{n} {split} tasks asked for, Spider ({config.questions}, {config.score}) has {len(found)}"
            )
        return tuple(found[:n])

    @classmethod
    def demonstrator(cls, config: SqlConfig, task: Task, seed: int) -> Callable[[Env], str]:
        return sql_tasks.demonstrator(setup(task).database, task.data["gold"], seed)

    def reset(self, task: Task, seed: int, budget: int | None = None) -> list[dict[str, str]]:
        """See Env. `seed` changes nothing: there is no chance in this environment.

        Raises ValueError for a bad task, for an empty gold under the strict score, for a budget outside 1..Tmax.
        """
        budget = self.config.max_turns if budget is None else budget
        if not 1 <= budget <= self.config.max_turns:
            raise ValueError(f"budget={budget}: must be in 1..{self.config.max_turns} (max_turns)")
        self._open(task)
        self.budget, self.turns, self.streak, self.over = int(budget), 0, 0, False
        self._last: str | None = None  # statement whose rows a submit would score
        self._rows: list[tuple] | None = None
        self._seen = ""
        database = "" if "script" in task.data else f"Database: {task.data['db']}\n"
        question = self._with_budget(database + task.data["question"])
        return [{"role": "system", "content": _RULES}, {"role": "user", "content": question}]

    def step(self, action: str) -> Step:
        """See Env. info: `solved`, `invalid`, `error` (the statement was refused or failed), at submit also `score`.

        Raises RuntimeError when the episode is over or its budget is spent.
        """
        self._check_started()
        if self.over or self.turns_left < 1:
            raise RuntimeError(f"the episode is over after {self.turns} of {self.budget} turns: call reset or restore")
        statement = parse(action)
        self.turns += 1
        self.streak = self.streak + 1 if statement is None else 0
        info = {"solved": False, "invalid": statement is None, "error": False}
        if statement == "submit":
            self.over, score = True, self._score(self._rows)
            return Step("", score, True, info | {"solved": score == 1.0, "score": score})
        if statement is None:
            self._seen = "invalid: reply with one SQL statement or submit"
            self.over = self.streak >= self.config.max_invalid
        else:
            found = _result(self._task, statement)
            info["error"] = isinstance(found, SqlError)
            self._rows = None if info["error"] else found
            self._last = None if self._rows is None else statement
            if info["error"]:
                self._seen = f"error: {str(found)[:SHOWN_ERROR]}"
            else:
                self._seen = "ok" if self._rows is None else self._show(statement, self._rows)
        return Step(self._seen if self.over else self._with_budget(self._seen), 0.0, self.over, info)

    def snapshot(self) -> bytes:
        """See Env. JSON: the task, counters, the last observation and the statement of the last result.

        The database cannot change, so it is not in it; restore runs that statement again.
        """
        self._check_started()
        counters = [self.turns, self.budget, self.streak, self.over]
        state = [self._task.id, self._task.data, counters, self._last, self._seen]
        return json.dumps(state, separators=(",", ":")).encode()

    def restore(self, blob: bytes) -> None:
        """See Env. Raises ValueError for bytes that are not a snapshot of this environment."""
        try:
            name, data, (turns, budget, streak, over), last, seen = json.loads(blob)
        except (TypeError, ValueError) as error:
            raise ValueError(f"not an InterCode-SQL snapshot: {blob[:80]!r}") from error
        if budget > self.config.max_turns:
            raise ValueError(f"snapshot with a budget of {budget} turns, max_turns is {self.config.max_turns}")
        self._open(Task(name, data))
        self.turns, self.budget, self.streak, self.over = turns, budget, streak, over
        self._last, self._seen = last, seen
        self._rows = None if last is None else run(self._setup.database, last)

    def reseed(self, seed: int) -> None:
        """See Env. Nothing to do: there is no chance in this environment."""
        self._check_started()

    def state_key(self) -> tuple[str, str, int]:
        """Task, digest of the last result and its text, invalid answers in a row: what the next observations and the
        reward depend on, but for the turn, as in FrozenLake. The way there is not in it."""
        self._check_started()
        outcome = hashlib.sha256(repr((self._rows, self._seen)).encode()).hexdigest()[:16]
        return self._task.id, outcome, self.streak

    def step_quality(self, action: str) -> float:
        """The score the action's result would get if it were submitted now, negative ones as 0; for submit the score of
        the last result. Looking at the schema is worth 0 by this measure, however useful: it rates answers."""
        self._check_started()
        statement = parse(action)
        if statement is None or self.over:
            return 0.0
        return self._worth(self._rows if statement == "submit" else _result(self._task, statement))

    def step_loss(self, action: str) -> float:
        """What counts as going wrong: 1 for an answer that is neither SQL nor submit and for a statement that the
        database refuses; else how much less a submit would score after the action than before it, negative scores as 0.

        So a look at the schema or a first attempt that is wrong loses nothing, whatever it rates by `step_quality`; one
        that takes the place of a better result does. Submit loses nothing: it takes what there is."""
        self._check_started()
        statement = parse(action)
        if statement == "submit" or self.over:
            return 0.0
        found = None if statement is None else _result(self._task, statement)
        if statement is None or isinstance(found, SqlError):
            return 1.0
        return max(0.0, self._worth(self._rows) - self._worth(found))

    @property
    def turns_left(self) -> int:
        """Turns of the budget not used yet."""
        return self.budget - self.turns

    def _open(self, task: Task) -> None:
        ready = setup(task)
        if self.config.score == "strict" and not ready.gold:
            raise ValueError(f"task {task.id}: its gold returns no rows; the strict score leaves such tasks out")
        self._task, self._setup = task, ready

    def _check_started(self) -> None:
        if self._task is None:
            raise RuntimeError("no episode: call reset or restore first")

    def _score(self, rows: list[tuple] | None) -> float:
        if self.config.score == "official":
            return official_score(rows, self._setup.gold)
        return strict_score(rows, self._setup.gold, self._setup.ordered)

    def _worth(self, rows: list[tuple] | None | SqlError) -> float:
        return 0.0 if isinstance(rows, SqlError) else max(0.0, self._score(rows))

    def _show(self, statement: str, rows: list[tuple]) -> str:
        """A result as text: MySQL rows as Python prints them (InterCode), or words for the procedural tasks."""
        if self.config.task_set == "spider":
            text = str(rows[:SHOWN_ROWS])
        elif DESC.fullmatch(statement):
            text = "columns: " + " ".join(row[0] for row in rows)
        elif TABLES.fullmatch(statement):
            text = "tables: " + " ".join(row[0] for row in rows)
        else:
            text = " ; ".join(" ".join("NULL" if x is None else str(x) for x in row) for row in rows[:SHOWN_ROWS])
        if len(rows) > SHOWN_ROWS or len(text) > SHOWN_CHARACTERS:
            return f"{text[:SHOWN_CHARACTERS]} ... ({len(rows)} rows)"
        return text or "no rows"

    def _with_budget(self, text: str) -> str:
        if not self.config.show_budget:
            return text
        return f"{text}\nYou have {self.turns_left} turn{'s' * (self.turns_left != 1)} left."
