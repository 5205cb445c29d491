"""MySQL's reading dialect on an embedded, guarded SQLite: what InterCode-SQL (arXiv 2306.14898) runs on a MySQL server.

Gold and agent run on the same engine, so a score compares like with like. Where the engine differs from MySQL: 5 / 2 is
2, `||` joins strings, names of tables are not case-sensitive, ASCII letters alone compare without case, accents and
trailing spaces count. Double quotes hold a string and backslashes escape, as in MySQL.

A statement is written by a model and hostile until proven otherwise. Guards: an authorizer that allows reading only,
one statement a call, limits on lengths and depths, a count of virtual machine steps (the same on every machine, so
that an episode replays), a clock behind it, a heap limit, a cap on the rows taken.
"""

from __future__ import annotations

import math
import re
import sqlite3
import time
from dataclasses import dataclass

MAX_SQL = 4_000  # characters
MAX_ROWS = 10_000
MAX_BYTES = 1 << 20  # of text and blobs in one result
STEP = 1_000  # virtual machine instructions between two calls of the progress handler
MAX_STEPS = 5_000_000  # instructions a statement may take
MAX_SECONDS = 5.0  # clock behind MAX_STEPS, for instructions that are slow
HEAP = 256 << 20  # bytes; SQLite keeps one heap limit for the whole process

_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` | --[^\n]* | \#[^\n]* | /\*.*?\*/ | [^\W\d][\w$]* |
    \s+ | .""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_NAME = r"(?:[`\"]?\w+[`\"]?\s*\.\s*)?[`\"]?(\w+)[`\"]?"
_DESC = re.compile(rf"(?:desc|describe|show\s+(?:full\s+)?(?:columns|fields)\s+(?:from|in))\s+{_NAME}", re.I)
_TABLES = re.compile(r"show\s+(?:full\s+)?tables(?:\s+(?:from|in)\s+[`\"]?(\w+)[`\"]?)?", re.I)
_CLOCK = re.compile(
    r"'now'|\b(?:date|time|datetime|julianday|unixepoch)\s*\(\s*\)|\bstrftime\s*\(\s*'[^']*'\s*\)", re.I
)
_UNSTABLE = {"random", "randomblob", "current_date", "current_time", "current_timestamp", "load_extension"}
_HINTS = {
    "regexp": "use LIKE", "rlike": "use LIKE", "now": "results must not depend on the clock",
    "curdate": "results must not depend on the clock", "rand": "results must not depend on chance",
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


def _text(token: str) -> str:
    """A quoted MySQL string as an SQLite literal."""
    quote = token[0]
    body = re.sub(r"\\(.)", lambda m: _ESCAPE.get(m[1], m[1]), token[1:-1].replace(quote * 2, "\\" + quote), flags=re.S)
    return "'" + body.replace("'", "''") + "'"


def tokens(sql: str) -> list[str]:
    """Lexical tokens of MySQL text, white space and comments included; strings already as SQLite literals."""
    return [_text(t) if len(t) > 1 and t[0] in "'\"" else t for t in _TOKEN.findall(sql)]


def translate(sql: str) -> str:
    """MySQL text → SQLite text: strings, comments, and LEFT( and RIGHT(, which SQLite reserves for joins."""
    words = [" " if t.startswith(("--", "#", "/*")) else t for t in tokens(sql)]
    for i, word in enumerate(words[:-1]):
        if word.lower() in ("left", "right") and words[i + 1] == "(":
            words[i] = f"mysql_{word}"
    return "".join(words).strip()


def is_ordered(sql: str) -> bool:
    """Whether the statement itself orders its rows: ORDER BY outside of all brackets."""
    depth, words = 0, []
    for t in tokens(sql):
        depth += (t == "(") - (t == ")")
        if depth == 0 and not t.isspace():
            words.append(t.lower())
    return ("order", "by") in zip(words, words[1:], strict=False)


def build(name: str, script: str) -> Database:
    """Run a trusted SQLite script on an empty database and keep the result."""
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.execute("PRAGMA page_size = 1024")
    conn.executescript("BEGIN;" + script + ";COMMIT;")
    tables = {}
    for (table,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid").fetchall():
        indexes = conn.execute("SELECT name FROM pragma_index_list(?) WHERE origin = 'c'", (table,)).fetchall()
        keys = {r[0] for i in indexes for r in conn.execute("SELECT name FROM pragma_index_info(?) LIMIT 1", i)}
        info = conn.execute("SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_info(?)", (table,))
        tables[table] = [
            (c, kind, "NO" if notnull or pk else "YES", "PRI" if pk else "MUL" if c in keys else "", default, "")
            for c, kind, notnull, default, pk in info
        ]
    image = conn.serialize()
    conn.close()
    return Database(name, image, tables)


def _null(f):
    """SQL's rule: a NULL argument gives NULL."""
    return lambda *a: None if None in a else f(*a)


def _part(start: int, stop: int):
    return _null(lambda d: int(str(d)[start:stop]) if str(d)[start:stop].isdigit() else None)


def _real(f):
    return _null(lambda *a: f(*map(float, a)))


_FUNCTIONS = {
    ("concat", -1): _null(lambda *a: "".join(map(str, a))),
    ("concat_ws", -1): lambda sep, *a: None if sep is None else str(sep).join(str(x) for x in a if x is not None),
    ("if", 3): lambda c, a, b: a if c else b,
    ("mysql_left", 2): _null(lambda s, n: str(s)[: max(0, n)]),
    ("mysql_right", 2): _null(lambda s, n: str(s)[-n:] if n > 0 else ""),
    ("year", 1): _part(0, 4), ("month", 1): _part(5, 7), ("day", 1): _part(8, 10),
    ("lcase", 1): _null(lambda s: str(s).lower()), ("ucase", 1): _null(lambda s: str(s).upper()),
    ("char_length", 1): _null(lambda s: len(str(s))), ("locate", 2): _null(lambda t, s: str(s).lower().find(str(t).lower()) + 1),
    ("mod", 2): _null(lambda a, b: math.fmod(a, b) if isinstance(a, float) or isinstance(b, float) else int(math.fmod(a, b))
                      if b else None),
    ("floor", 1): _real(math.floor), ("ceil", 1): _real(math.ceil), ("ceiling", 1): _real(math.ceil),
    ("sqrt", 1): _real(math.sqrt), ("pow", 2): _real(math.pow), ("power", 2): _real(math.pow),
}  # fmt: skip


def _authorize(action: int, _table, name, _db, _trigger) -> int:
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and str(name).lower() not in _UNSTABLE:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def connect(database: Database) -> sqlite3.Connection:
    """A private, guarded, in-memory copy under the database's own name, so that `db.table` works as in MySQL."""
    conn = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    conn.execute(f"PRAGMA hard_heap_limit = {HEAP}")
    conn.execute("PRAGMA temp_store = MEMORY")
    conn.execute(f"ATTACH ':memory:' AS `{database.name}`")
    conn.deserialize(database.image, name=database.name)
    for (name, arity), f in _FUNCTIONS.items():
        conn.create_function(name, arity, f, deterministic=True)
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, 1 << 16),  # quadratic string functions stay short
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 2 * MAX_SQL), (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 256),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100), (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 20),
        (sqlite3.SQLITE_LIMIT_COLUMN, 200), (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    ):  # fmt: skip
        conn.setlimit(limit, value)
    conn.execute("PRAGMA query_only = ON")
    conn.set_authorizer(_authorize)
    return conn


def run(conn: sqlite3.Connection, database: Database, statement: str) -> list[tuple] | None:
    """Rows of one reading statement; None for USE. Raises SqlError with a message for the agent."""
    if len(statement) > MAX_SQL:
        raise SqlError(f"statement of {len(statement)} characters; at most {MAX_SQL}")
    statement = statement.strip().rstrip(";").rstrip()
    words = statement.lower().split()
    if found := _DESC.fullmatch(statement):
        for table, columns in database.tables.items():
            if table.lower() == found[1].lower():
                return list(columns)
        raise SqlError(f"no such table: {found[1]}")
    if found := _TABLES.fullmatch(statement):
        _check_name(database, found[1] or database.name)
        return [(t,) for t in database.tables]
    if words in (["show", "databases"], ["show", "schemas"]):
        return [(database.name,)]
    if words[:1] == ["use"] and len(words) == 2:
        _check_name(database, words[1].strip("`\""))
        return None
    if words[:1] not in (["select"], ["with"]):
        raise SqlError("only SELECT, SHOW TABLES, DESC table and USE database are allowed")
    return _select(conn, translate(statement))


def _check_name(database: Database, name: str) -> None:
    if name.lower() != database.name.lower():
        raise SqlError(f"unknown database: {name}; this one is {database.name}")


def _select(conn: sqlite3.Connection, sql: str) -> list[tuple]:
    if _CLOCK.search(sql):
        raise SqlError("results must not depend on the clock")
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
    if found := re.match(r"no such function: (\w+)", message):
        known = "CONCAT, IF, LEFT, YEAR, substr, instr, round, strftime, date"
        return f"{message}; {_HINTS.get(found[1].lower(), f'SQLite has {known}')}"
    return message
