"""MySQL's reading dialect on an embedded, guarded SQLite: what InterCode-SQL (arXiv 2306.14898) runs on a MySQL server.

Gold and agent run on the same engine, so a score compares like with like. Where the engine differs from MySQL: 5 / 2 is
2, `||` joins strings, names of tables are not case-sensitive, ASCII letters alone compare without case, accents and
trailing spaces count.

A statement is written by a model and hostile until proven otherwise. Guards: an authorizer that allows reading only,
one statement a call, limits on lengths and depths, a count of virtual machine steps (the same on every machine, so
that an episode replays), a clock behind it, a heap limit, a cap on the rows taken.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from dataclasses import dataclass

from lib.envs.sql_dialect import FUNCTIONS, translate

MAX_SQL = 4_000  # characters
MAX_ROWS = 10_000
MAX_BYTES = 1 << 20  # of text and blobs in one result
STEP = 100  # virtual machine instructions between two calls of the progress handler
MAX_STEPS = 20_000_000  # instructions a statement may take
MAX_SECONDS = 5.0  # clock behind MAX_STEPS, for instructions that are slow
HEAP = 64 << 20  # bytes; SQLite keeps one heap limit for the whole process

_NAME = r"(?:`?\w+`?\s*\.\s*)?`?(\w+)`?"
DESC = re.compile(rf"(?:desc|describe|show\s+(?:full\s+)?(?:columns|fields)\s+(?:from|in))\s+{_NAME}", re.I)
TABLES = re.compile(r"show\s+(?:full\s+)?tables(?:\s+(?:from|in)\s+`?(\w+)`?)?", re.I)
_CLOCK = re.compile(
    r"'now'|\b(?:date|time|datetime|julianday|unixepoch)\s*\(\s*\)|\bstrftime\s*\(\s*'[^']*'\s*\)", re.I
)
_ALLOWED = {name for name, _ in FUNCTIONS} | set(
    "abs avg char coalesce count date datetime glob group_concat hex ifnull iif instr julianday length like lower "
    "ltrim max min nullif replace round rtrim sign strftime substr substring sum time total trim typeof unicode "
    "unixepoch upper row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value "
    "nth_value".split()
)  # not printf, whose padding takes seconds within one instruction, and nothing that depends on chance or the clock
_NO_CLOCK = "results must not depend on the clock"
_NO_CHANCE = "results must not depend on chance"
_HINTS = {
    "regexp": "use LIKE", "now": _NO_CLOCK, "curdate": _NO_CLOCK, "current_date": _NO_CLOCK,
    "current_timestamp": _NO_CLOCK, "rand": _NO_CHANCE, "random": _NO_CHANCE,
    "date_format": "use strftime('%Y-%m-%d', d)", "date_add": "use date(d, '+1 day')",
    "date_sub": "use date(d, '-1 day')", "extract": "use YEAR(d), MONTH(d) or DAY(d)",
}  # fmt: skip


class SqlError(Exception):
    """A statement was refused or failed; the message is what the agent sees."""


@dataclass(frozen=True)
class Database:
    """A serialized SQLite database. tables: name → columns as MySQL's DESC gives them (Field, Type, Null, Key,
    Default, Extra)."""

    name: str
    image: bytes
    tables: dict[str, list[tuple]]


def build(name: str, script: str) -> Database:
    """Run a trusted SQLite script on an empty database and keep the result."""
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.execute("PRAGMA page_size = 1024")
    conn.executescript("BEGIN;" + script + ";COMMIT;")
    tables = {}
    for (table,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid").fetchall():
        indexes = conn.execute("SELECT name FROM pragma_index_list(?) WHERE origin = 'c'", (table,)).fetchall()
        keys = {r[0] for i in indexes for r in conn.execute("SELECT name FROM pragma_index_info(?) LIMIT 1", i)}
        info = conn.execute('SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (table,))
        tables[table] = [
            (
                c,
                kind.lower(),
                "NO" if notnull or pk else "YES",
                "PRI" if pk else "MUL" if c in keys else "",
                None if default in (None, "NULL") else default.strip("'"),
                "",
            )
            for c, kind, notnull, default, pk in info
        ]
    image = conn.serialize()
    conn.close()
    return Database(name, image, tables)


def _authorize(action: int, _table, name, _db, _trigger) -> int:
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and str(name).lower() in _ALLOWED:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _connect(database: Database) -> sqlite3.Connection:
    """A private, guarded, in-memory copy under the database's own name, so that `db.table` works as in MySQL."""
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.execute(f"PRAGMA hard_heap_limit = {HEAP}")
    conn.execute("PRAGMA temp_store = MEMORY")
    conn.execute(f"ATTACH ':memory:' AS `{database.name}`")
    conn.deserialize(database.image, name=database.name)
    for (name, arity), f in FUNCTIONS.items():
        conn.create_function(name, arity, f, deterministic=True)
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, 1 << 16),  # keeps functions of quadratic cost short
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 2 * MAX_SQL), (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 256),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100), (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 20),
        (sqlite3.SQLITE_LIMIT_COLUMN, 200), (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    ):  # fmt: skip
        conn.setlimit(limit, value)
    conn.execute("PRAGMA query_only = ON")
    conn.set_authorizer(_authorize)
    return conn


def run(database: Database, statement: str) -> list[tuple] | None:
    """Rows of one reading statement; None for USE. Raises SqlError with a message for the agent.

    Every SELECT has its own copy of the database (0.1 to 0.2 ms), so nothing can pass from one statement to another.
    """
    if len(statement) > MAX_SQL:
        raise SqlError(f"statement of {len(statement)} characters; at most {MAX_SQL}")
    statement = translate(statement).rstrip("; \n")
    words = statement.lower().split()
    if found := DESC.fullmatch(statement):
        for table, columns in database.tables.items():
            if table.lower() == found[1].lower():
                return list(columns)
        raise SqlError(f"no such table: {found[1]}")
    if found := TABLES.fullmatch(statement):
        _check_name(database, found[1] or database.name)
        return [(t,) for t in database.tables]
    if words in (["show", "databases"], ["show", "schemas"]):
        return [(database.name,)]
    if words[:1] == ["use"] and len(words) == 2:
        _check_name(database, words[1].strip("`"))
        return None
    if not re.match(r"(?:select|with)\b", statement, re.I):
        raise SqlError("only SELECT, SHOW TABLES, DESC table and USE database are allowed")
    with contextlib.closing(_connect(database)) as conn:
        return _select(conn, statement)


def _check_name(database: Database, name: str) -> None:
    if name.lower() != database.name.lower():
        raise SqlError(f"unknown database: {name}; this one is {database.name}")


def _select(conn: sqlite3.Connection, sql: str) -> list[tuple]:
    if _CLOCK.search(sql):
        raise SqlError(_NO_CLOCK)
    calls, end = 0, time.monotonic() + MAX_SECONDS

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls * STEP > MAX_STEPS or time.monotonic() > end

    conn.set_progress_handler(stop, STEP)
    rows, size = [], 0
    try:
        for row in conn.execute(sql):
            rows.append(row)
            size += sum(len(x) for x in row if isinstance(x, (str, bytes)))
            if len(rows) > MAX_ROWS or size > MAX_BYTES:
                raise SqlError(f"result too large (over {MAX_ROWS} rows or {MAX_BYTES} bytes); select less")
        return rows
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as e:
        raise SqlError(_explain(str(e))) from None
    except MemoryError:
        raise SqlError("out of memory; simplify the statement") from None


def _explain(message: str) -> str:
    """SQLite's message, with what to use instead where a MySQL function is missing."""
    if message == "interrupted":
        return "the statement takes too long; simplify it"
    if found := re.match(r"(?:no such function|not authorized to use function): (\w+)", message):
        known = "there are CONCAT, IF, LEFT, RIGHT, YEAR, substr, instr, round, strftime, date"
        return f"no such function: {found[1]}; {_HINTS.get(found[1].lower(), known)}"
    return message
