"""The configuration of InterCode-SQL, generated tasks that a tiny transformer can learn, and demonstrations.

A question speaks of concepts ("label of products with cost over 7"); each database names a concept by one of three
words (item, goods or ware; price, fee or charge), so the agent must look at the schema before it can write SQL.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lib.envs.base import SPLITS, Task
from lib.envs.sql_engine import Database

KINDS = ("filter", "aggregate", "order", "join")
BUCKETS = {"train": range(0, 8), "valid": range(8, 9), "test": range(9, 10)}  # of the gold's SHA-256 modulo 10
MAX_TABLES = 4

_TABLES = {
    "people": ("staff", "member", "person"), "products": ("item", "goods", "ware"), "towns": ("city", "place", "site"),
    "films": ("movie", "clip", "video"),
}  # fmt: skip
_NUMBERS = {"cost": ("price", "fee", "charge"), "weight": ("mass", "load", "heft"), "merit": ("score", "rank", "grade")}
_LABEL, _COLOUR, _LINK = ("name", "title", "tag"), ("hue", "tint", "shade"), ("ref", "link", "fk")
SYNONYMS = (*_TABLES.values(), *_NUMBERS.values(), _LABEL, _COLOUR, _LINK)  # a database uses one name of each
_WORDS = ("ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal", "ivy", "jon", "kim", "lou")
_COLOURS = ("red", "blue", "green")
_LARGEST = 12  # numbers in the tables: 1 to this, distinct in a column, so that an order is never ambiguous


@dataclass(frozen=True)
class SqlConfig:
    """What InterCode-SQL is played. Raises ValueError for any value that is not allowed."""

    task_set: str = "procedural"
    """"procedural" (generated) or "spider" (InterCode's questions on Spider's development databases)."""
    max_turns: int = 10
    """Tmax: turns of a full-budget episode."""
    show_budget: bool = False
    """Tell the policy how many turns are left. Hidden by default: then one rollout at Tmax serves every T."""
    max_invalid: int = 3
    """That many answers in a row that are neither SQL nor submit end the episode."""
    score: str = "official"
    """"official" or "strict", see lib/envs/sql_score.py."""
    tables: int = 2
    """Procedural: tables of a database, 1 to 4; joins need 2."""
    rows: int = 4
    """Procedural: rows of a table, 2 to 12."""
    kinds: tuple[str, ...] = KINDS
    """Procedural: kinds of questions, of "filter", "aggregate", "order", "join"."""
    questions: str = "dev"
    """Spider: "dev" (the 1034 of ic_spider_dev.json) or "package" (the 23 in intercode-bench)."""
    spider_json: str = ""
    """Spider, dev: a copy of ic_spider_dev.json; else the variable INTERCODE_SPIDER_JSON, else data/ (fetched)."""

    def __post_init__(self):
        bounds = {
            "max_turns": (1, None),
            "max_invalid": (1, None),
            "tables": (1, MAX_TABLES),
            "rows": (2, 12),
        }
        for field, (low, high) in bounds.items():
            value = getattr(self, field)
            if type(value) is not int or value < low or (high and value > high):
                raise ValueError(
                    f"{field}={value!r}: must be an integer of at least {low}" + f", at most {high}" * bool(high)
                )
        choices = {"task_set": ("procedural", "spider"), "score": ("official", "strict"),
                   "questions": ("dev", "package"), "show_budget": (False, True)}  # fmt: skip
        for field, allowed in choices.items():
            value = getattr(self, field)
            if type(value) is not type(allowed[0]) or value not in allowed:
                raise ValueError(f"{field}={value!r}: must be one of {', '.join(map(repr, allowed))}")
        if type(self.kinds) is not tuple or not self.kinds or not set(self.kinds) <= set(KINDS):
            raise ValueError(f"kinds={self.kinds!r}: must be a tuple of {', '.join(map(repr, KINDS))}")
        if "join" in self.kinds and self.tables < 2:
            raise ValueError(f"tables={self.tables}: questions of kind 'join' need at least 2 tables")
        if type(self.spider_json) is not str:
            raise ValueError(f"spider_json={self.spider_json!r}: must be a path as text")


def _database(rng: random.Random, n_tables: int, n_rows: int) -> tuple[str, list[dict]]:
    """SQL script of a random database and, per table, its concept, names and rows."""
    script, tables = [], []
    for i, concept in enumerate(rng.sample(sorted(_TABLES), n_tables)):
        table = {"concept": concept, "name": rng.choice(_TABLES[concept]), "label": rng.choice(_LABEL)}
        table |= {"colour": rng.choice(_COLOUR), "link": rng.choice(_LINK)}
        table["numbers"] = {c: rng.choice(_NUMBERS[c]) for c in rng.sample(sorted(_NUMBERS), 2)}
        labels = rng.sample(_WORDS, n_rows)
        values = {c: rng.sample(range(1, _LARGEST + 1), n_rows) for c in table["numbers"]}
        table["values"], table["colours"] = values, [rng.choice(_COLOURS) for _ in range(n_rows)]
        columns = [
            ("id", "int PRIMARY KEY", range(1, n_rows + 1)),
            (table["label"], "varchar(9) COLLATE NOCASE", labels),
        ]
        columns += [(table["numbers"][c], "int", values[c]) for c in table["numbers"]]
        columns += [(table["colour"], "varchar(9) COLLATE NOCASE", table["colours"])]
        if i == 0 and n_tables > 1:  # the first table refers to the second
            columns += [(table["link"], "int", [rng.randint(1, n_rows) for _ in range(n_rows)])]
        head = ", ".join(f"{name} {kind}" for name, kind, _ in columns)
        rows = ", ".join("(" + ", ".join(map(repr, row)) + ")" for row in zip(*(c[2] for c in columns), strict=True))
        script.append(f"CREATE TABLE {table['name']} ({head}); INSERT INTO {table['name']} VALUES {rows};")
        tables.append(table)
    rng.shuffle(script)
    return " ".join(script), tables


def _condition(rng: random.Random, table: dict, prefix: str = "") -> tuple[str, str]:
    """(words, SQL) of a condition that some rows meet."""
    if rng.random() < 0.4:
        colour = rng.choice(table["colours"])
        return f"with colour {colour}", f"{prefix}{table['colour']} = '{colour}'"
    concept = rng.choice(sorted(table["numbers"]))
    column, values = prefix + table["numbers"][concept], sorted(table["values"][concept])
    if rng.random() < 0.5:
        value = rng.choice(values[:-1])
        return f"with {concept} over {value}", f"{column} > {value}"
    value = rng.choice(values[1:])
    return f"with {concept} under {value}", f"{column} < {value}"


def _question(rng: random.Random, kind: str, tables: list[dict]) -> tuple[str, str]:
    """(question, gold)."""
    table = tables[0] if kind == "join" else rng.choice(tables)
    concept, name, label = table["concept"], table["name"], table["label"]
    words, where = _condition(rng, table)
    number = rng.choice(sorted(table["numbers"]))
    column = table["numbers"][number]
    if kind == "filter":
        return f"label of {concept} {words}", f"SELECT {label} FROM {name} WHERE {where}"
    if kind == "aggregate":
        # no COUNT: of so few rows it is guessed too often
        word, function = rng.choice((("highest", "MAX"), ("lowest", "MIN"), ("total", "SUM")))
        if rng.random() < 0.5:
            return f"{word} {number} of {concept}", f"SELECT {function}({column}) FROM {name}"
        return f"{word} {number} of {concept} {words}", f"SELECT {function}({column}) FROM {name} WHERE {where}"
    if kind == "order":
        n = rng.randint(1, 3)
        word, order = rng.choice((("highest", " DESC"), ("lowest", "")))
        return (
            f"label of {n} {concept} with {word} {number}",
            f"SELECT {label} FROM {name} ORDER BY {column}{order} LIMIT {n}",
        )
    other = tables[1]
    words, where = _condition(rng, table, "a.")
    gold = f"SELECT b.{other['label']} FROM {name} a JOIN {other['name']} b ON a.{table['link']} = b.id WHERE {where}"
    return f"label of {other['concept']} of {concept} {words}", gold


def _stream(n_tables: int, n_rows: int, kinds: tuple[str, ...]) -> Iterator[tuple[int, dict]]:
    for i in itertools.count():
        rng = random.Random(f"sql-{i}")
        script, tables = _database(rng, n_tables, n_rows)
        question, gold = _question(rng, rng.choice(kinds), tables)
        yield i, {"db": "shop", "script": script, "question": question, "gold": gold}


def procedural_tasks(split: str, n: int, n_tables: int, n_rows: int, kinds: tuple[str, ...]) -> tuple[Task, ...]:
    """The first n generated tasks of a split, as {"db", "script", "question", "gold"}.

    The gold's SHA-256 names the split, so that no gold of valid or test is ever met in training. The first n do not
    depend on n. Raises ValueError for an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
    mine = (
        Task(f"sql-{i:06d}", data)
        for i, data in _stream(n_tables, n_rows, kinds)
        if int(hashlib.sha256(data["gold"].encode()).hexdigest(), 16) % 10 in BUCKETS[split]
    )
    return tuple(itertools.islice(mine, n))


def demonstrator(database: Database, gold: str, seed: int) -> Callable[[object], str]:
    """Plays SHOW TABLES, DESC of the tables needed, the gold, submit; with a probability drawn uniformly from the seed
    (0: an expert, 1: random play) a turn is a random action instead."""
    rng = random.Random(f"sql-demo-{seed}")
    noise = 0.6 * rng.random()
    used = set(gold.lower().replace("`", " ").split())
    plan = ["SHOW TABLES", *(f"DESC {t}" for t in database.tables if t.lower() in used), gold, "submit"]
    columns = {t: [c[0] for c in cs] for t, cs in database.tables.items()}
    names = [*columns, *itertools.chain(*columns.values()), *itertools.chain(*SYNONYMS)]
    swaps = (("MAX", "MIN", "SUM"), (">", "<", "="), ("red", "blue", "green"), ("1", "2", "3"))

    def damaged() -> str:
        words = gold.split(" ")
        i = rng.randrange(1, len(words))
        for group in swaps:
            for old in group:
                if old in words[i]:
                    words[i] = words[i].replace(old, rng.choice(group))
                    return " ".join(words)
        words[i] = rng.choice(names)
        return " ".join(words)

    def random_action() -> str:
        table = rng.choice(list(columns))
        return rng.choice((
            "SHOW TABLES", f"DESC {table}", f"DESC {table}", f"SELECT {rng.choice(columns[table])} FROM {table}",
            damaged(), damaged(), damaged(), "submit",
        ))  # fmt: skip

    at = 0

    def act(_env) -> str:
        nonlocal at
        if rng.random() < noise:
            at = min(at, len(plan) - 2)  # whatever came last is no longer the gold's result
            return random_action()
        at += 1
        return plan[min(at, len(plan)) - 1]

    return act
