"""InterCode-SQL's engine: reading an answer, MySQL's dialect, looking at the schema, hostile statements."""

import pytest
from test_sql import SCRIPT

from lib.envs.base import Task
from lib.envs.sql import Sql, SqlConfig, setup
from lib.envs.sql_dialect import is_ordered, parse, translate
from lib.envs.sql_engine import SqlError, build, run

DB = build("shop", SCRIPT)


def test_parse():
    same = "SELECT 1"
    for text in (
        same,
        "select 1;"[:0] + same + " ;",
        f"```sql\n{same}\n```",
        f"Look:\n```\n{same};\n```\n",
        f" {same}\n",
    ):
        assert parse(text) == same
    assert parse(f"<think>DROP it?</think><answer>{same}</answer>") == same
    assert parse("SUBMIT;") == parse("```\nsubmit\n```") == "submit"
    assert [parse(t) for t in ("", "I would submit", "the answer is 3", "<think>SELECT 1")] == [None] * 4
    assert parse("-- first\nSELECT 1") == "-- first\nSELECT 1" and parse("drop table people") == "drop table people"


def test_mysql_text():
    one = lambda sql: run(DB, sql)  # noqa: E731
    assert (
        translate(r"""SELECT "it's", 'a\'b\\', "x""y", 'p''q', `c` -- end""")
        == """SELECT 'it''s', 'a''b\\', 'x"y', 'p''q', `c`"""
    )
    assert one('SELECT name FROM `people` WHERE name = "ANN"') == [("Ann",)]
    assert one("SELECT CONCAT('a', 1), CONCAT_WS('-', 'a', NULL, 'b'), IF(1 > 2, 'x', 'y'), LEFT('abc', 2)") == [
        ("a1", "a-b", "y", "ab")
    ]
    assert one("SELECT RIGHT('abc', 2), YEAR(born), MONTH(born), DAY(born), MOD(7, 3) FROM people WHERE id = 1") == [
        ("bc", 2001, 2, 3, 1)
    ]
    assert one("SELECT LEFT(NULL, 1), YEAR(born), CONCAT('a', NULL) FROM people WHERE id = 2") == [(None, None, None)]
    assert one("SELECT LOCATE('b', 'abc'), CHAR_LENGTH('abc'), UCASE('a'), FLOOR(1.5), CEIL(1.5)") == [
        (2, 3, "A", 1, 2)
    ]
    assert one("SELECT a.name FROM people a LEFT JOIN big ON a.id = n WHERE a.id = 1 # c") == [("Ann",)]
    for sql, hint in (
        ("NOW()", "clock"),
        ("DATE_FORMAT(1, 2)", "strftime"),
        ("RAND()", "chance"),
        ("SOUNDEX(1)", "CONCAT"),
    ):
        with pytest.raises(SqlError, match=hint):
            one(f"SELECT {sql}")
    assert is_ordered("SELECT a FROM t ORDER  BY a LIMIT 1") and not is_ordered("SELECT a FROM t WHERE b = 'ORDER BY'")
    assert not is_ordered("SELECT a FROM t WHERE a > (SELECT b FROM t ORDER BY b LIMIT 1)")


def test_looking_at_the_schema():
    assert run(DB, "SHOW TABLES") == run(DB, "show tables from shop;") == [("people",), ("big",)]
    rows = [("id", "int", "NO", "PRI", None, ""), ("name", "varchar(9)", "YES", "", "x", ""),
            ("age", "int", "YES", "MUL", None, ""), ("born", "date", "YES", "", None, "")]  # fmt: skip
    for sql in ("DESC people", "DESCRIBE `people`", "desc shop.People;", "SHOW COLUMNS FROM people"):
        assert run(DB, sql) == rows
    assert run(DB, "USE shop") is None and run(DB, "SHOW DATABASES") == [("shop",)]
    assert run(DB, "SELECT COUNT(*) FROM shop.people") == [(3,)]
    for sql in ("DESC nobody", "USE mysql", "SHOW TABLES FROM mysql"):
        with pytest.raises(SqlError):
            run(DB, sql)


ENDLESS = "WITH RECURSIVE r (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r)"
BOMB = "WITH a0 AS (SELECT 1 x)" + "".join(
    f", a{i} AS (SELECT 1 x FROM a{i - 1} p, a{i - 1} q, a{i - 1} r)" for i in range(1, 40)
)
AMPLIFIED = "'aaaaaaaaaaaaaaaa'"
for _ in range(5):  # 16 to the power of 6 characters, 16 MB
    AMPLIFIED = f"replace({AMPLIFIED}, 'a', 'aaaaaaaaaaaaaaaa')"
HOSTILE = [
    "DROP TABLE people", "DELETE FROM people", "INSERT INTO people VALUES (9, 'x', 1, NULL)",
    "UPDATE people SET age = 1", "CREATE TABLE t (x)", "ALTER TABLE people RENAME TO p",
    "REPLACE INTO people VALUES (1, 'x', 1, NULL)",
    "ATTACH '{0}/a.db' AS a", "VACUUM INTO '{0}/b.db'", "VACUUM", "PRAGMA query_only = 0", "BEGIN", "EXPLAIN SELECT 1",
    "SELECT 1; DROP TABLE people", "WITH x AS (SELECT 1) DELETE FROM people",
    "SELECT * FROM pragma_table_info('people')",
    "SELECT load_extension('{0}/x')", "SELECT writefile('{0}/c', 'x')", "SELECT readfile('/etc/passwd')",
    f"{ENDLESS} SELECT COUNT(*) FROM r", f"{ENDLESS} SELECT x FROM r", f"{BOMB} SELECT * FROM a39",
    "SELECT COUNT(*) FROM big a, big b, big c, big d", "SELECT a.n FROM big a, big b",
    "SELECT zeroblob(1000000000)", "SELECT printf('%.*c', 2000000000, 'x')",
    "SELECT group_concat(a.n) FROM big a, big b", f"SELECT {AMPLIFIED}", f"SELECT '{'a' * 3000}' || n FROM big",
    "SELECT random()", "SELECT name FROM people ORDER BY randomblob(4)", "SELECT date('now')",
    "SELECT current_timestamp", "SELECT date()", "SELECT strftime('%Y')",
    "SELECT " + "(" * 300 + "1" + ")" * 300, "SELECT " + "1," * 3000 + "1", "SELECT '\ud800'", "SELECT '\\0'",
    "SELECT CAST(x'ff' AS TEXT)", "SELECT '", "SELECT", "WITH", "DESC", "USE",
]  # fmt: skip


@pytest.mark.parametrize("action", HOSTILE, ids=lambda a: a.encode("ascii", "replace").decode()[:40])
def test_hostile_statements(action, tmp_path):
    gold = "SELECT * FROM people"
    task = Task("t", {"db": "shop", "script": SCRIPT, "question": "who?", "gold": gold})
    env = Sql(SqlConfig())
    env.reset(task, 0)
    image, rows = setup(task).database.image, run(DB, gold)
    step = env.step(action.replace("{0}", str(tmp_path)))
    assert step.info["error"] and step.reward == 0 and not step.done and step.observation.startswith("error: ")
    assert len(step.observation) < 500 and not list(tmp_path.iterdir())
    env.step(gold)
    assert env.step("submit").reward == 1  # the database is as before, and the environment goes on
    assert setup(task).database.image == image == DB.image and run(DB, gold) == rows
