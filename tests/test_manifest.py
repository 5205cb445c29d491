"""Keys: what they distinguish and what they refuse."""

import enum
import itertools
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib.manifest import canonical, hash_folder, source_hash, step_key

FILES = {
    "__init__.py": "",
    "train.py": "import json\nfrom .parts import loss\n\ndef f():\n    from demo.parts import late\n",
    "figures.py": "x = 1\n",
    "named.py": "x = 1\n",
    "parts/__init__.py": "",
    "parts/loss.py": "from ..deep import d\nWHERE = 'demo.named'\n",
    "parts/late.py": "x = 1\n",
    "deep.py": "d = 1\n",
}


@pytest.fixture
def demo_hash(tmp_path, monkeypatch):
    """Writes the package `demo`, some files changed, in a folder of its own and hashes demo.train."""
    numbers = itertools.count()

    def make(**changes):
        root = tmp_path / str(next(numbers))
        for name, text in (FILES | {k.replace("__s__", "/") + ".py": v for k, v in changes.items()}).items():
            path = root / "demo" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        with monkeypatch.context() as m:
            m.syspath_prepend(str(root))
            return source_hash("demo.train")

    return make


def test_source_hash_follows_imports(demo_hash):
    base = demo_hash()
    assert demo_hash() == base  # the same package in another folder
    assert demo_hash(figures="x = 2") == base  # not imported
    assert demo_hash(named="x = 2") == base  # only named in a string
    assert demo_hash(deep="# a comment\nd = (1)\n") == base  # layout does not count
    told = FILES["train.py"].replace("f():", "f():\n    'What it does.'")
    assert demo_hash(train=f"'What it is.'\n{told}") == base  # nor do docstrings
    changed = [
        demo_hash(deep="d = 2"),  # train -> parts.loss -> deep, relative imports
        demo_hash(parts__s__late="x = 2"),  # imported inside a function
        demo_hash(parts__s____init__="x = 2"),  # the package of an imported module
        demo_hash(train=FILES["train.py"] + "y = 1"),
    ]
    assert len({base, *changed}) == 5


def test_source_hash_refuses_what_it_cannot_vouch_for(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "edited_module.py").write_text("x = 1")
    first = source_hash("edited_module")
    assert source_hash("edited_module") == first != source_hash("edited_module", "lib.store")
    (tmp_path / "edited_module.py").write_text("x = 2")
    with pytest.raises(RuntimeError, match="edited_module.py was edited after this process loaded it"):
        source_hash("edited_module")
    for name in ("no_such_module", "lib.no_such_module", "__main__.x"):
        with pytest.raises(ValueError, match="no source found"):
            source_hash(name)


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Config:
    rate: object = 1
    more: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Other:
    rate: object = 1
    more: dict = field(default_factory=dict)


def test_key_distinguishes_values_and_types():
    values = [
        1,
        1.0,
        True,
        "1",
        None,
        "None",
        [1],
        {"1": 1},
        0.1 + 0.2,
        0.3,
        0.0,
        -0.0,
        "red",
        Colour.RED,
        [],
        [[]],
        {},
    ]
    configs = values + [Config(v) for v in values] + [Other(v) for v in values]
    keys = [step_key("a", c, "s", ["i"]) for c in configs]
    keys += [step_key("b", 1, "s", ["i"]), step_key("a", 1, "t", ["i"]), step_key("a", 1, "s", ["j"])]
    assert len(set(keys)) == len(configs) + 3
    assert step_key("a", {"x": (1, 2), "y": 3}, "s", []) == step_key("a", {"y": 3, "x": [1, 2]}, "s", ())


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.text().filter(lambda k: not k.startswith("__"))


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(scalars, lambda v: st.lists(v) | st.dictionaries(keys, v), max_leaves=8))
def test_canonical_form_can_be_read_back(value):
    """So that no two values share one."""
    assert repr(json.loads(json.dumps(canonical(value)))) == repr(value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Config(more={"a": [1, {2}]}), r"config\.more\['a'\]\[1\] is a set"),
        (Config(np.float64(1)), r"config\.rate is a float64"),
        (Config(Path("x")), r"config\.rate is a PosixPath.*hash_folder"),
        (Config, "config is a type"),
        ({1: 2}, "keys must be strings"),
        ({"__class__": 2}, "keys must be strings"),
    ],
)
def test_key_refuses_other_types(bad, message):
    with pytest.raises(TypeError, match=message):
        step_key("a", bad, "s", [])


def test_hash_folder(tmp_path):
    a = tmp_path / "a"
    (a / "sub").mkdir(parents=True)
    (a / "config.json").write_text("{}")
    (a / "sub" / "weights").write_bytes(b"12")
    base = hash_folder(a)
    (a / ".cache").mkdir()
    (a / ".cache" / "x").write_text("time")
    shutil.copytree(a, tmp_path / "b")
    assert hash_folder(a) == hash_folder(tmp_path / "b") == base
    (a / "sub" / "weights").write_bytes(b"13")
    (tmp_path / "b" / "config.json").rename(tmp_path / "b" / "config2.json")
    assert len({base, hash_folder(a), hash_folder(tmp_path / "b")}) == 3
    (a / "lost").symlink_to("nowhere")
    with pytest.raises(ValueError, match="lost is a link"):
        hash_folder(a)
    with pytest.raises(ValueError, match="no files"):
        hash_folder(tmp_path / "none")
