"""Training on two processes that torchrun starts (gloo): what comes out is what one process makes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ranks_worker import CASES, SMALL, X, train_case
from safetensors.torch import load_file
from trainer_parts import Lengths, make

from lib import stages
from lib.config import ROOT
from lib.store import load_manifest, read_jsonl
from lib.trainers import ranks
from lib.trainers.config import TrainConfig


@pytest.fixture(scope="module")
def two(base, tmp_path_factory):
    """The cases of two ranks: `out`, the folder of their runs, and `found`, what each rank returned."""
    out = tmp_path_factory.mktemp("two")
    worker = Path(__file__).with_name("ranks_worker.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(worker)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*command, str(base.folder), str(out)], env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[done.stderr.find("Traceback") :]
    return SimpleNamespace(out=out, found=[json.loads((out / f"rank{i}.json").read_text()) for i in (0, 1)])


def weights(folder):
    (path,) = folder.glob("model/*.safetensors")
    return load_file(path)


def without_clock(row):
    return {k: v for k, v in row.items() if not k.startswith("seconds_")}


def close(a, b):
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], atol=1e-5, rtol=0) for k in a)


@pytest.mark.parametrize("name", [c for c in CASES if c != "one_down"])
def test_two_ranks_train_what_one_process_trains(two, base, tmp_path, name):
    one, _ = train_case(base.folder, name, tmp_path)
    results, checksums = zip(*(f[name] for f in two.found), strict=True)
    assert checksums[0] == checksums[1]
    for result in results:
        assert result == pytest.approx(one | {"processes": 2}, rel=1e-5)
    alone = weights(tmp_path / name)
    assert close(alone, weights(two.out / name))
    if name != "lora":
        start = load_file(base.folder / "model.safetensors")
        assert max((alone[k] - start[k]).abs().max() for k in start) > 1e-4  # much was learnt
    rows = [[without_clock(r) for r in read_jsonl(p / name / "metrics.jsonl")] for p in (tmp_path, two.out)]
    assert [r["update"] for r in rows[1]] == [1, 2, 3]  # written once
    for a, b in zip(*rows, strict=True):
        assert b == pytest.approx(a, abs=1e-5, rel=1e-5)
    if name == "grpo":
        probes = [read_jsonl(p / name / "probe.jsonl") for p in (tmp_path, two.out)]
        assert probes[0] == [pytest.approx(p) for p in probes[1]] and [p["update"] for p in probes[1]] == [0, 1, 2, 3]
        assert len(list((two.out / name).glob("snapshots/update-000[0-3]/model.safetensors"))) == 4


def test_a_rank_without_anything_to_learn_from_still_takes_part(two):
    (_, first), (_, second) = (f["one_down"] for f in two.found)
    assert first == second
    assert [r["end_error"] for r in read_jsonl(two.out / "one_down" / "metrics.jsonl")] == [0.5] * 3


def test_a_cut_run_is_resumed_by_two_ranks(two):
    for f in two.found:
        assert f["cut"] == f["whole"] and f["cut"]["updates"] == 5
    whole, cut = weights(two.out / "whole"), weights(two.out / "cut")
    assert all(torch.equal(whole[k], cut[k]) for k in whole)
    rows = [[without_clock(r) for r in read_jsonl(two.out / n / "metrics.jsonl")] for n in ("whole", "cut")]
    assert rows[0] == rows[1]


def test_a_launched_run_is_found_in_the_step_cache(two, monkeypatch):
    assert [f["launch"] for f in two.found] == [0, 0]
    monkeypatch.setattr(stages, "RUNS", two.out / "runs")
    monkeypatch.setattr(stages, "_make_run", lambda *a: pytest.fail("trained a second time"))
    step = stages.train_step(X, "budgetmix", 1)
    assert load_manifest(step)["result"]["processes"] == 2
    assert len(list((two.out / "runs").glob("train-*/DONE"))) == 1
    assert [r["update"] for r in read_jsonl(step / "metrics.jsonl")] == [1, 2]


def test_what_would_train_something_else_is_refused(policy, lake, tmp_path, monkeypatch):
    run = TrainConfig(**SMALL)
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(ValueError, match="12 episodes an update .* into 5 processes"):
        ranks.share(run.tasks_per_update * run.group_size)
    monkeypatch.setenv("WORLD_SIZE", "2")
    args = SimpleNamespace(n_gpu=1)
    for processes, kind, loss, message in (
        (1, "NO", "dapo", "1 processes .* 2 expected"),
        (2, "FSDP", "dapo", "FSDP: the policy must be whole"),
        (2, "MULTI_CPU", "bnpo", "'dapo' is the same mean"),
    ):
        with pytest.raises(ValueError, match=message):
            ranks.check(args, SimpleNamespace(num_processes=processes, distributed_type=kind), loss)
    ranks.check(args, SimpleNamespace(num_processes=2, distributed_type="MULTI_GPU"), "dapo")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="with 4 GPUs each"):
        ranks.check(SimpleNamespace(n_gpu=4), SimpleNamespace(num_processes=1, distributed_type="NO"), "dapo")
    assert make(policy, lake, tmp_path, Lengths).args.per_device_train_batch_size == 8
