"""Spider's development databases and questions as InterCode-SQL uses them (arXiv 2306.14898, 1809.08887).

The databases are a MySQL dump inside the wheel of `intercode-bench`, which is taken as data: its dependencies (a MySQL
client, docker, scikit-learn) are not needed. The dump is converted to SQLite here. Questions: 1034 in the file
`ic_spider_dev.json` of InterCode's repository, 23 in the wheel. Licences: the package MIT, Spider CC BY-SA 4.0.

`python -m lib.envs.sql_data` fetches both into data/; after that nothing is fetched any more.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

from lib.envs.base import Task
from lib.envs.sql_dialect import tokens
from lib.envs.sql_engine import Database, build

DATA = Path(__file__).parents[2] / "data"
WHEEL = "intercode_bench-0.1.22-py3-none-any.whl"
WHEEL_SHA256 = "3cecd6796bdb70276a5915ca1db725b5e419291638a34383b16747530d95b8cc"
DUMP = "intercode/assets/datasets/spider_dev.sql"
PACKAGE_QUESTIONS = "intercode/assets/datasets/sql_queries.csv"
DEV = "ic_spider_dev.json"
DEV_URL = (
    "https://raw.githubusercontent.com/princeton-nlp/intercode/6945762813e0521a3963aa799201ce99b677984b/"
    "data/sql/spider/ic_spider_dev.json"
)
DEV_SHA256 = "68c9ecb0692c80770f46c724cc073ea76be4f301a294caa532c050546948128e"
DEV_VARIABLE = "INTERCODE_SPIDER_JSON"
TEST_DATABASES, VALID_DATABASES = 7, 3  # of 20; the rest is for training

_COLUMN = re.compile(
    r"(`[^`]+`) (\w+(?:\([\d,]+\))?)( COLLATE utf8mb4_general_ci)?((?: NOT NULL| DEFAULT (?:NULL|'.*?'|\w+))*)"
    r"(?: AUTO_INCREMENT)?"
)
_SKIPPED = ("CREATE USER", "GRANT", "FLUSH", "CREATE DATABASE", "DROP TABLE", "LOCK TABLES", "UNLOCK TABLES", "SET")


def _check(path: Path, sha256: str) -> Path:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise ValueError(f"{path} has SHA-256 {found}, not {sha256}: delete it and run `python -m lib.envs.sql_data`")
    return path


def wheel_path() -> Path:
    """The wheel in data/, fetched once with pip. Raises RuntimeError where it cannot be had."""
    path = DATA / WHEEL
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=DATA) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            done = subprocess.run([*command, "-d", folder, "intercode-bench==0.1.22"], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(
                    f"{path} is missing and pip could not fetch it ({done.stderr.strip()[-300:]}). Run `pip download "
                    f"--no-deps intercode-bench==0.1.22 -d {DATA}` where there is a network, then copy the file here."
                )
            os.replace(_check(Path(folder) / WHEEL, WHEEL_SHA256), path)
    return _check(path, WHEEL_SHA256)


def dev_path() -> Path:
    """`ic_spider_dev.json` in data/, fetched once at a pinned commit. Raises RuntimeError where it cannot be had."""
    path = DATA / DEV
    if not path.exists():
        import pooch  # only for this download

        try:
            pooch.retrieve(DEV_URL, f"sha256:{DEV_SHA256}", fname=DEV, path=DATA)
        except (OSError, ValueError) as e:  # no network, or another file than the pinned one
            raise RuntimeError(
                f"{path} is missing and could not be fetched ({type(e).__name__}: {str(e)[:200]}). Download {DEV_URL} "
                f"and put it there, or name a copy in the variable {DEV_VARIABLE} or the config field spider_json, "
                f"or use questions='package' (the 23 questions of the package)."
            ) from None
    return _check(path, DEV_SHA256)


@lru_cache(maxsize=1)
def dump() -> str:
    """The MySQL dump, as text."""
    with zipfile.ZipFile(wheel_path()) as wheel:
        return wheel.read(DUMP).decode("utf-8")


def _statements(text: str) -> list[list[str]]:
    """Tokens of each statement of a dump, without comments."""
    out: list[list[str]] = [[]]
    for token in tokens(text):
        if token == ";":
            out.append([])
        elif not token.startswith(("--", "/*", "#")):
            out[-1].append(token)
    return [s for s in out if "".join(s).strip()]


def _create(statement: str) -> str:
    """CREATE TABLE of mysqldump → SQLite. Declared types stay (SQLite derives the affinity); text ignores case."""
    head, *lines = statement.strip().splitlines()
    table = re.fullmatch(r"CREATE TABLE (`[^`]+`) \(", head)[1]
    parts, indexes = [], []
    for line in (x.strip().removesuffix(",") for x in lines[:-1]):
        line = re.sub(r"`\(\d+\)", "`", line)  # SQLite indexes whole columns, not prefixes of them
        if found := _COLUMN.fullmatch(line):
            collate = " COLLATE NOCASE" if found[3] else ""
            parts.append(f"{found[1]} {found[2]}{collate}{found[4]}")
        elif found := re.fullmatch(r"(UNIQUE )?KEY `([^`]+)` (\(.+\))", line):
            name = f"`{table[1:-1]}.{found[2]}`"  # MySQL's names of keys are per table, SQLite's per database
            indexes.append(f"CREATE {found[1] or ''}INDEX {name} ON {table} {found[3]};")
        elif re.match(r"PRIMARY KEY \(|CONSTRAINT `[^`]+` FOREIGN KEY \(", line):
            parts.append(line)
        else:
            raise ValueError(f"cannot convert this line of table {table}: {line}")
    return f"CREATE TABLE {table} ({', '.join(parts)});" + "".join(indexes)


def convert(text: str) -> dict[str, Database]:
    """A mysqldump of several databases → SQLite databases by name. Raises ValueError for what it does not know."""
    scripts: dict[str, list[str]] = {}
    current = None
    for words in _statements(text):
        statement = "".join(words).strip()
        if found := re.fullmatch(r"USE `(\w+)`", statement):
            current = scripts.setdefault(found[1], [])
        elif statement.startswith(_SKIPPED):
            continue
        elif current is not None and statement.startswith("CREATE TABLE "):
            current.append(_create(statement))
        elif current is not None and statement.startswith("INSERT INTO "):
            current.append(statement + ";")
        else:
            raise ValueError(f"cannot convert this statement of the dump: {statement[:200]}")
    return {name: build(name, "\n".join(script)) for name, script in scripts.items()}


@lru_cache(maxsize=1)
def databases() -> dict[str, Database]:
    """The 20 databases by name, converted once per process."""
    return convert(dump())


def split_databases(split: str) -> list[str]:
    """Databases of a split. By the SHA-256 of the names: the first 7 test, the next 3 valid, the rest train."""
    names = sorted(databases(), key=lambda n: hashlib.sha256(n.encode()).hexdigest())
    a, b = TEST_DATABASES, TEST_DATABASES + VALID_DATABASES
    return {"test": names[:a], "valid": names[a:b], "train": names[b:]}[split]


def _rows(questions: str, path: str) -> tuple[str, list[dict]]:
    if questions == "package":
        with zipfile.ZipFile(wheel_path()) as wheel:
            return PACKAGE_QUESTIONS, list(csv.DictReader(io.StringIO(wheel.read(PACKAGE_QUESTIONS).decode("utf-8"))))
    source = Path(path or os.environ.get(DEV_VARIABLE) or dev_path())
    try:
        return str(source), json.loads(source.read_text("utf-8"))
    except OSError as e:
        raise FileNotFoundError(
            f"cannot read {source} ({e.strerror}), named by spider_json or {DEV_VARIABLE}; it is {DEV_URL}"
        ) from None
    except ValueError as e:
        raise ValueError(f"{source} is not JSON ({e}); expected the file {DEV_URL}") from None


def spider_tasks(questions: str, path: str) -> tuple[Task, ...]:
    """All questions in the order of the file, as {"db", "question", "gold"}; the id holds the file's index.

    questions: "dev" (`path`, else the variable INTERCODE_SPIDER_JSON, else data/) or "package". Raises ValueError for
    a file that is not InterCode's.
    """
    source, rows = _rows(questions, path)
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{source}: expected a list of questions")
    out = []
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not all(isinstance(row.get(k), str) for k in ("db", "query", "gold")):
            raise ValueError(f"{source}, item {i}: expected text fields db, query and gold")
        if row["db"] not in databases():
            raise ValueError(f"{source}, item {i}: unknown database {row['db']!r}; known: {', '.join(databases())}")
        data = {"db": row["db"], "question": row["query"], "gold": row["gold"]}
        out.append(Task(f"sql-spider-{questions}-{i:04d}", data))
    return tuple(out)


if __name__ == "__main__":
    print(wheel_path(), len(databases()), "databases")
    print(dev_path(), len(spider_tasks("dev", "")), "questions")
