"""Runs the cases of test_ranks.py: `torchrun … ranks_worker.py BASE OUT`, on each rank; or imported, in one process."""

import hashlib
import json
import os
import sys
from pathlib import Path

from test_resume import Crash
from test_stages import X
from trainer_parts import Flaky, Lengths

from lib import profiles, stages
from lib.envs.frozenlake import FrozenLake, FrozenLakeConfig
from lib.policies.hf import HFPolicy
from lib.trainers import launch
from lib.trainers.budgets import BudgetMix
from lib.trainers.config import TrainConfig
from lib.trainers.trainer import AgentTrainer, train

SMALL = {"updates": 3, "tasks_per_update": 3, "group_size": 4, "warmup": 0, "kl_episodes": 3, "budget": BudgetMix(0.5)}


class OneDown(Lengths):
    """On rank 1 no episode can start."""

    def reset(self, task, seed, budget=None):
        if os.environ.get("RANK") == "1":
            raise OSError("no disk")
        return super().reset(task, seed, budget)


CASES = {  # 12 episodes, 6 a rank: the second group of 4 sits on both
    "grpo": (Lengths, SMALL | {"iterations": 2, "probe_every": 1, "probe_samples": 1}),
    "gigpo": (Flaky, SMALL | {"algorithm": "gigpo"}),
    "ppo": (Flaky, SMALL | {"algorithm": "ppo"}),
    "oracle_q": (Lengths, SMALL | {"algorithm": "oracle_q"}),
    "mean_of_episodes": (Flaky, SMALL | {"loss_type": "grpo"}),
    "lora": (Lengths, SMALL | {"lora_rank": 4, "lr": 1e-2}),
    "one_down": (OneDown, SMALL),
}
CUT = TrainConfig(**SMALL | {"updates": 5, "iterations": 2, "save_every": 2})  # Crash strikes after 7 of 10 steps


def arguments(env, run):
    config = FrozenLakeConfig(size=3, max_turns=6, observation="local")
    return env, config, run, FrozenLake.tasks(config, "train", 8), FrozenLake.tasks(config, "valid", 3)


def train_case(base, name, out):
    """Train one case; the result, and a checksum of all weights in memory, of the critic too."""
    env, run = CASES[name]
    policy = HFPolicy.load(base, max_context=512)
    result = train(policy, *arguments(env, TrainConfig(**run)), out / name)
    state = sorted(policy.model.state_dict().items())
    return result, hashlib.sha256(b"".join(v.numpy().tobytes() for _, v in state)).hexdigest()


def cut_and_resume(base, out):
    trainer = AgentTrainer(HFPolicy.load(base, max_context=512), *arguments(Lengths, CUT), out / "cut")
    trainer.add_callback(Crash)
    try:
        trainer.train()
    except KeyboardInterrupt:
        return resume(base, out / "cut")


def resume(base, folder):
    return train(HFPolicy.load(base, max_context=512), *arguments(Lengths, CUT), folder)


def main(base: Path, out: Path) -> None:
    rank = os.environ["RANK"]
    found = {name: train_case(base, name, out) for name in CASES}
    found["whole"] = resume(base, out / "whole")
    found["cut"] = cut_and_resume(base, out)
    stages.RUNS, profiles.PROFILES["small"] = out / "runs", (X,)
    found["launch"] = launch.main(["--profile", "small", "--arm", "budgetmix", "--seed", "1"])
    (out / f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
