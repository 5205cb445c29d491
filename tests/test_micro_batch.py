"""Micro-batches save memory and change nothing else: the same weights as with all episodes at once."""

import pytest
from trainer_parts import Lengths

from lib.policies.hf import HFPolicy
from lib.store import read_jsonl
from lib.trainers.config import TrainConfig
from lib.trainers.trainer import train


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_weights_are_those_of_one_large_batch(base, lake, tmp_path, algorithm):
    found = {}
    for size in (0, 2):
        run = TrainConfig(
            algorithm=algorithm, updates=2, tasks_per_update=2, group_size=4, iterations=2, warmup=0, save_every=2,
            kl_episodes=0, micro_batch=size,
        )  # fmt: skip
        policy = HFPolicy.load(base.folder, max_context=512)
        train(policy, Lengths, lake.config, run, lake.tasks, lake.probe, tmp_path / str(size))
        weights = HFPolicy.load(tmp_path / str(size) / "model").model.state_dict()
        found[size] = weights, read_jsonl(tmp_path / str(size) / "metrics.jsonl")
    (whole, rows), (parts, micro) = found[0], found[2]
    before = HFPolicy.load(base.folder).model.state_dict()
    assert max((whole[k] - before[k]).abs().max() for k in whole) > 1e-3
    assert max((whole[k] - parts[k]).abs().max() for k in whole) < 2e-5
    assert [r["update"] for r in micro] == [r["update"] for r in rows] == [1, 2]
    for a, b in zip(rows, micro, strict=True):
        assert a["reward"] == b["reward"] and a["tokens"] == b["tokens"]
        assert b["logp_gap"] < 1e-4 and b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-3)
        assert algorithm == "grpo" or b["value_loss"] == pytest.approx(a["value_loss"], rel=1e-3)


def test_what_does_not_go_evenly_is_refused(base, lake, tmp_path):
    policy = HFPolicy.load(base.folder, max_context=512)
    run = TrainConfig(updates=1, tasks_per_update=2, group_size=4, micro_batch=3)
    with pytest.raises(ValueError, match="micro_batch 3: the 8 episodes of a process do not go evenly"):
        train(policy, Lengths, lake.config, run, lake.tasks, lake.probe, tmp_path)
