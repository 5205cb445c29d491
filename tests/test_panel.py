import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib.envs.base import Task
from lib.envs.frozenlake import FrozenLakeConfig
from lib.panel import Panel, check_disjoint, panel

CONFIG = FrozenLakeConfig(size=3)


def test_panel_holds_the_first_tasks_of_the_split():
    p = panel("frozenlake", CONFIG, "valid", 8)
    assert (p.env, p.split, len(p.tasks)) == ("frozenlake", "valid", 8)
    assert p.tasks[:5] == panel("frozenlake", CONFIG, "valid", 5).tasks
    assert panel("lib.envs.frozenlake:FrozenLake", CONFIG, "valid", 8).tasks == p.tasks


def test_hash_is_sha256_of_the_digests_and_sees_order_ids_and_data():
    a, b, b2 = Task("a", {"x": 1}), Task("b", {"x": 2}), Task("b", {"x": 3})
    digests = [hashlib.sha256(text).hexdigest() for text in (b'["a", {"x": 1}]', b'["b", {"x": 2}]')]
    expected = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    assert Panel("frozenlake", "test", (a, b)).hash == expected
    others = [(b, a), (a, b2), (a,), (a, Task("c", {"x": 2}))]
    assert expected not in {Panel("frozenlake", "test", t).hash for t in others}


def test_hash_is_the_same_in_another_process():
    code = (
        "from lib.panel import panel; from lib.envs.frozenlake import FrozenLakeConfig as C;"
        "print(panel('frozenlake', C(size=3), 'train', 50).hash)"
    )
    root, env = Path(__file__).parents[1], os.environ | {"PYTHONHASHSEED": "7"}
    out = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == panel("frozenlake", CONFIG, "train", 50).hash


def test_splits_are_disjoint_and_overlaps_are_named():
    panels = [panel("frozenlake", CONFIG, s, 100) for s in ("train", "valid", "test")]
    check_disjoint(*panels)
    same_map = Task("other-name", panels[0].tasks[3].data)
    with pytest.raises(ValueError, match=f"1 tasks .*other-name.*{panels[0].tasks[3].id}"):
        check_disjoint(*panels, Panel("frozenlake", "test", (same_map,)))
    with pytest.raises(ValueError, match="other-name"):
        check_disjoint(panels[0], Panel("lib.envs.frozenlake:FrozenLake", "test", (same_map,)))
    with pytest.raises(ValueError, match="100 tasks .*and 90 more"):
        check_disjoint(panels[0], panels[0])


def test_bad_input_is_refused():
    for args, message in (
        (("moonlake", CONFIG, "train", 1), "unknown environment"),
        (("frozenlake", {"size": 3}, "train", 1), "must be FrozenLakeConfig"),
        (("frozenlake", CONFIG, "dev", 1), "split"),
        (("frozenlake", CONFIG, "train", 0), "n=0"),
        (("frozenlake", CONFIG, "train", 1.0), "n=1.0"),
        (("frozenlake", FrozenLakeConfig(size=2), "train", 10_000), "only"),
    ):
        with pytest.raises(ValueError, match=message):
            panel(*args)
    for tasks in ((), (Task("a", {}), Task("a", {"x": 1}))):
        with pytest.raises(ValueError, match="each id once"):
            Panel("frozenlake", "train", tasks)
