"""The profiles: what they hold, and that wrong ones are refused with a message that helps."""

import sys
from dataclasses import replace

import pytest

from lib.config import ARMS, ROOT, EvalConfig, check_seeds, results_dir
from lib.envs.frozenlake import FrozenLakeConfig
from lib.manifest import source_hash
from lib.policies.config import ENGINES, PolicyConfig
from lib.profiles import DEFAULT_SEEDS, PROFILES, experiment
from lib.trainers.budgets import BudgetMix, Fixed, Staged
from lib.trainers.config import TrainConfig

LAKE = experiment("tiny", "frozenlake")


def test_every_profile_is_usable():
    assert {"tiny", "smoke"} <= DEFAULT_SEEDS.keys() <= PROFILES.keys()  # 3 seeds where none are named
    for profile, experiments in PROFILES.items():
        assert len({x.env for x in experiments}) == len(experiments) > 0
        assert check_seeds(DEFAULT_SEEDS.get(profile, 3))
        for x in experiments:
            assert x.profile == profile and experiment(profile, x.env) is x
            assert {"grpo", "budgetmix"} <= set(x.arms) or x.env != "frozenlake"
            for arm in x.arms:
                assert x.train_config(arm, 1).seed == 1 and x.arm_env_config(arm).max_turns == x.t_max
            hash(x)  # experiments are keys of caches
    assert results_dir("tiny") == ROOT / "results" and results_dir("smoke") == ROOT / "results" / "smoke"
    assert (ROOT / "lib" / "config.py").is_file()


def test_a_run_differs_from_another_in_its_arm_and_seed_only():
    x = replace(LAKE, train=TrainConfig(updates=40, lr=2e-4))
    full, mix = x.train_config("grpo", 0), x.train_config("budgetmix", 0)
    assert full.budget == Fixed(1.0) and mix.budget == BudgetMix(0.1)
    assert replace(mix, budget=full.budget) == full == replace(x.train_config("grpo", 2), seed=0)
    assert x.train_config("staged", 0).budget == Staged((0.25, 0.5, 1.0), every=10)  # a quarter of 40 updates a stage
    assert x.train_config("fixed50", 0).budget == Fixed(0.5)
    assert not any(arm.show_budget for arm in (ARMS["grpo"], ARMS["budgetmix"]))  # hidden unless it is the ablation
    assert x.arm_env_config("base") == x.env_config
    shown = x.arm_env_config("budgetmix_shown")
    assert shown == replace(x.env_config, show_budget=True) == x.arm_env_config("base_shown")


def test_turns_of_a_fraction_by_hand():
    assert LAKE.t_max == 20
    assert [LAKE.turns(f) for f in (0.1, 0.25, 0.5, 0.55, 0.75, 1.0)] == [2, 5, 10, 11, 15, 20]
    short = replace(LAKE, env_config=FrozenLakeConfig(max_turns=7))
    assert [short.turns(f) for f in (0.1, 0.3, 0.7)] == [1, 3, 5]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: experiment("huge"), "unknown profile 'huge'; known: tiny, "),
        (lambda: experiment("tiny", "moonlake"), "profile tiny has no 'moonlake'; it has frozenlake"),
        (lambda: LAKE.train_config("reinforce", 0), "arm 'reinforce' is not in tiny/frozenlake; it has grpo"),
        (lambda: replace(LAKE, arms=("grpo", "xpo")), "unknown arm 'xpo'; known: grpo"),
        (lambda: LAKE.arm_env_config("xpo"), "unknown arm 'xpo'; known: base"),
        (lambda: replace(LAKE, env="moonlake"), "unknown environment 'moonlake'"),
        (lambda: replace(LAKE, env_config={"size": 4}), "frozenlake needs a FrozenLakeConfig, got dict"),
        (lambda: replace(LAKE, train_tasks=10), "75 training tasks to evaluate, 10 to train on"),
        (lambda: EvalConfig(samples=4), "K = 8 is larger than n = 4 samples"),
        (lambda: EvalConfig(samples=8, ks=(1, 16)), "K = 16 is larger than n = 8 samples"),
        (lambda: EvalConfig(samples=8, budget_k=9), "K = 9 is larger"),
        (lambda: PolicyConfig(max_action_tokens=0), "max_action_tokens 0: it must be in 1..1023"),
        (lambda: PolicyConfig(max_action_tokens=64, max_context=64), "max_action_tokens 64: it must be in 1..63"),
        (lambda: PolicyConfig(temperature=0.0), "temperature 0.0: it must be > 0"),
        (lambda: PolicyConfig(engine="sglang"), "engine 'sglang': it must be one of hf, vllm"),
        (lambda: PolicyConfig(server="http://localhost:8000"), "only engine 'vllm' has one, not 'hf'"),
        (lambda: check_seeds(1), "seeds=1: at least 2"),
        (lambda: check_seeds(0), "seeds=0: at least 2"),
        (lambda: check_seeds(True), "seeds=True"),
        (lambda: check_seeds("3"), "seeds='3'"),
        (lambda: TrainConfig(algorithm="xpo"), "algorithm 'xpo': known are grpo"),
        (lambda: TrainConfig(group_size=1), "group_size 1: .*at least 2"),
        (lambda: TrainConfig(updates=0), "updates 0: it must be at least 1"),
        (lambda: TrainConfig(tasks_per_update=0), "tasks_per_update 0"),
        (lambda: TrainConfig(iterations=0), "iterations 0"),
        (lambda: TrainConfig(save_every=0), "save_every 0"),
        (lambda: TrainConfig(lr=0), r"lr 0: it must be in \(0, 1\)"),
        (lambda: TrainConfig(lr=1.5), "lr 1.5"),
    ],
)
def test_wrong_values_are_refused_before_any_work(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_seeds_are_counted_from_zero():
    assert check_seeds(3) == [0, 1, 2]


def test_the_engine_is_chosen_by_name_and_a_missing_one_names_the_extra(base, monkeypatch):
    from lib.policies.hf import HFPolicy

    policy = PolicyConfig(max_context=300, temperature=0.5).load(base.folder)
    assert type(policy) is HFPolicy and (policy.max_context, policy.temperature) == (300, 0.5)
    monkeypatch.setitem(sys.modules, "vllm", None)  # as where it is not installed
    with pytest.raises(ImportError, match=r"engine 'vllm' needs vLLM: pip install '.\[vllm\]'"):
        PolicyConfig(engine="vllm").load(base.folder)
    keys = {source_hash(PolicyConfig(engine=e).module) for e in ENGINES}
    assert len(keys) == len(ENGINES)  # what is sampled depends on the engine in use ...
    text = (ROOT / "lib" / "policies" / "hf.py").read_text() + (ROOT / "lib" / "trainers" / "trainer.py").read_text()
    assert "policies.vllm" not in text  # ... and not on the others
