"""What the repository promises about itself: pins, sizes, clean notebooks, an up-to-date README, clear refusals."""

import json
import re
import subprocess
import sys
import tomllib

import nbformat
import pandas as pd
import pytest

from lib import readme, reproduce, verify
from lib.config import ROOT
from lib.profiles import experiment

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LOCK = ROOT / ".ci" / "requirements.lock"


def pins(lines):
    found = re.findall(r'^\s*(?:- )?"?([A-Za-z0-9_.-]+)==([^\s";]+)', "\n".join(lines), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in found}


def test_environment_and_lock_have_the_pins_of_pyproject():
    project = pins(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    lock = pins(LOCK.read_text().splitlines())
    assert pins((ROOT / "environment.yml").read_text().splitlines()) == project
    assert {name: lock.get(name) for name in project} == project


def test_the_pin_check_notices_a_wrong_version(tmp_path):
    check = [sys.executable, str(ROOT / ".ci" / "check_pins.py")]
    assert subprocess.run([*check, str(LOCK)]).returncode == 0
    (tmp_path / "lock").write_text("pytest==0.0.1\nno-such-package==1\n")
    found = subprocess.run([*check, str(tmp_path / "lock")], capture_output=True, text=True)
    assert found.returncode == 1 and "pytest" in found.stderr and "no-such-package: absent" in found.stderr


def test_modules_are_short():
    long = {p.name: n for p in (ROOT / "lib").rglob("*.py") if (n := len(p.read_text().splitlines())) > 250}
    assert not long


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_in_git_are_clean_and_short(path):
    cells = [c for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    assert not [c for c in cells if c.outputs or c.execution_count]
    assert len(cells) <= 25 and sum(len(c.source.splitlines()) for c in cells) <= 200
    if path.stem[0].isdigit():
        assert sum("parameters" in c.metadata.get("tags", []) for c in cells) == 1


def test_readme_is_up_to_date():
    if not (ROOT / "results/tables/claims.csv").exists():
        pytest.fail("results/tables/claims.csv is missing: it is part of the repository")
    text = readme.README.read_text("utf-8")
    table = subprocess.run(["git", "show", "HEAD:results/tables/claims.csv"], cwd=ROOT, capture_output=True, text=True)
    claims = pd.read_csv(__import__("io").StringIO(table.stdout))  # a fresh run may have changed the working tree
    assert readme.claims_markdown(claims) in text and readme.sections_markdown() in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--profile", "huge"], "unknown profile 'huge'; known: tiny, "),
        (["--seeds", "1"], "at least 2 training seeds"),
        (["--notebooks", "11_more"], "unknown notebook '11_more'"),
        (["--workers", "0"], "workers=0"),
    ],
)
def test_reproduce_refuses_bad_input_before_work_starts(argv, message, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "run_all", lambda *a: pytest.fail("work started"))
    assert reproduce.main(argv) == 1
    assert message in capsys.readouterr().err


def test_the_base_policy_is_planned_before_the_arms_compared_with_it():
    x = experiment("tiny")
    plan = reproduce.plan(x, [0, 1])
    assert plan[0] == ("base", None) and len(plan) == 1 + 2 * len(x.arms) == len(set(plan))


def test_progress_reads_the_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "RUNS", tmp_path)
    assert reproduce.progress("lake-grpo-s0") is None
    work = tmp_path / "train-lake-grpo-s0-abc.work"
    work.mkdir()
    row = {"update": 30, "updates": 90, "reward": 0.5, "seconds_rollout": 1.0, "seconds_update": 1.0}
    (work / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert reproduce.progress("lake-grpo-s0") == "lake-grpo-s0: update 30/90, reward 0.50, ETA 2:00"


def test_verify_tells_a_changed_table_from_noise():
    row = {"environment": "lake", "policy": "a", "over": "b", "K": 1, "T": 5, "lead": 0.10, "low": 0.05, "high": 0.15}
    old = pd.DataFrame([row])
    near, unsure, other = (
        pd.DataFrame([row | {"lead": lead, "low": lead - half, "high": lead + half}])
        for lead, half in ((0.13, 0.01), (0.30, 0.20), (0.30, 0.10))
    )
    assert verify.compare("depth_leads", near, old) == []
    assert verify.compare("depth_leads", unsure, old) == []  # 0.10 to 0.50 overlaps 0.05 to 0.15
    assert "committed 0.100" in verify.compare("depth_leads", other, old)[0]
    base = pd.DataFrame([{"environment": "lake", "solved": 0.3, "failed": 0.7}])  # without intervals
    assert len(verify.compare("base_policies", base.assign(solved=0.4, failed=0.6), base)) == 2
    assert "rows differ" in verify.compare("depth_leads", pd.DataFrame([row | {"T": 6}]), old)[0]
    claim = {"claim": "C1", "environment": "lake", "estimate": 0.1, "low": 0.05, "high": 0.15, "verdict": "supported"}
    flipped = pd.DataFrame([claim | {"estimate": -0.01, "verdict": "opposite"}])
    assert "opposite, committed supported" in verify.compare("claims", flipped, pd.DataFrame([claim]))[0]


def test_notebooks_run_again_only_when_something_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    monkeypatch.setattr(reproduce, "results_dir", lambda profile: tmp_path / "results")
    for name in ("lib/a.py", "notebooks/02_x.ipynb", "results/tables/t.csv", "results/figures/f.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    steps = [tmp_path / "train-lake-grpo-s0-abc"]
    first = reproduce.stamp("tiny", ["02_x"], steps)
    assert first == json.loads(json.dumps(reproduce.stamp("tiny", ["02_x"], steps)))
    assert first != reproduce.stamp("tiny", ["02_x"], [tmp_path / "train-lake-grpo-s0-def"])
    for name in ("lib/a.py", "notebooks/02_x.ipynb", "results/tables/t.csv", "results/figures/f.png"):
        (tmp_path / name).write_text("2")
        assert first != reproduce.stamp("tiny", ["02_x"], steps)
        (tmp_path / name).write_text("1")
    (tmp_path / "results/figures/f.png").unlink()
    assert first != reproduce.stamp("tiny", ["02_x"], steps)
