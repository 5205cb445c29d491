"""The checker of environments: shipped ones keep the contract, broken ones are told what is wrong, and the example
environment can be trained."""

import random
from dataclasses import dataclass
from functools import cache

import pytest

from lib import stages
from lib.config import EvalConfig, Experiment
from lib.envs.base import NoStepMeasure, env_class
from lib.envs.check import check, main
from lib.envs.example_guess import Guess, GuessConfig
from lib.policies.config import TinyConfig
from lib.trainers.config import TrainConfig

GUESS = "lib.envs.example_guess:Guess"


@pytest.mark.parametrize("name", [GUESS, "frozenlake", "sql", "deepcoder"])
def test_environments_of_this_project_keep_the_contract(name):
    cls = env_class(name)
    assert check(cls, cls.Config(), n=2) == []


@dataclass
class Thawed:
    max_turns: int = 5
    show_budget: bool = False


@dataclass(frozen=True)
class Silent:
    max_turns: int = 5


class OneSplit(Guess):
    tasks = classmethod(lambda cls, config, split, n: super().tasks(config, split if split == "x" else "train", n))


class Backwards(Guess):
    tasks = classmethod(lambda cls, config, split, n: super().tasks(config, split, n)[::-1])


class AnySplit(Guess):
    tasks = classmethod(
        lambda cls, config, split, n: super().tasks(config, split if split != "no-such-split" else "test", n)
    )


class Loud(Guess):
    def step(self, action):
        return super().step(str(int(action)))


class Loose(Guess):
    def step(self, action):
        return tuple(super().step(action))


class Unpaid(Guess):
    def step(self, action):
        return super().step(action)._replace(reward=float("nan"))


class Untold(Guess):
    def step(self, action):
        return super().step(action)._replace(info={"solved": False})


class Tolerant(Guess):
    def step(self, action):
        step = super().step(action)
        return step._replace(info=step.info | {"invalid": False})


class GlobalChance(Guess):
    def reseed(self, seed):
        self.secret = random.randint(self.low, self.high)


class Shared(Guess):
    everyones = {}
    low = property(lambda self: self.everyones["low"], lambda self, value: self.everyones.update(low=value))


class Forgetful(Guess):
    def restore(self, blob):
        super().restore(blob)
        self.secret = self.low


class ListKey(Guess):
    def state_key(self):
        return [self.low, self.high]


class ObjectKey(Guess):
    def state_key(self):
        return object()


class Meddling(Guess):
    def step_quality(self, action):
        self.left -= 1
        return super().step_quality(action)


class HiddenDraw(Guess):
    """Its measure draws from a generator that is not in the snapshot, and the observation tells."""

    def reset(self, task, seed, budget=None):
        self.rng = random.Random(seed)
        return super().reset(task, seed, budget)

    def restore(self, blob):
        super().restore(blob)
        self.rng = random.Random(0)

    def step(self, action):
        return super().step(action)._replace(observation=str(self.rng.random()))

    def step_quality(self, action):
        self.rng.random()
        return super().step_quality(action)


class Overrated(Guess):
    def step_quality(self, action):
        return 1.5


class Unmeasured(Guess):
    has_step_measure = False


class Undeclared(Guess):
    value = Guess.__mro__[1].value

    def step_quality(self, action):
        raise NoStepMeasure("none")


class LowValue(Guess):
    def value(self):
        return 0.0


class Playing(Guess):
    @classmethod
    def demonstrator(cls, config, task, seed):
        return lambda env: str(env.step("1").done)


class Hopeless(Guess):
    @classmethod
    def demonstrator(cls, config, task, seed):
        return lambda env: "0"


class Moving(Guess):
    def reseed(self, seed):
        super().reseed(seed)
        self.high += 1 + seed % 2


class Telling(Guess):
    def _say(self, word):
        return f"{super()._say(word)} {self.left} left."


class Mute(Guess):
    def _say(self, word):
        return f"{word} {self.low} to {self.high}."


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (type("NotFrozen", (Guess,), {"Config": Thawed}), "not a frozen dataclass"),
        (type("NoBudget", (Guess,), {"Config": Silent}), "needs `show_budget`"),
        (type("Partial", (Guess.__mro__[1],), {"Config": GuessConfig, "name": "x"}), "methods are missing: demo"),
        (OneSplit, "a task stands in two splits, train and valid"), (AnySplit, "unknown split"),
        (Backwards, "other ones when only the first"), (Loud, "step raised ValueError"), (Loose, "not Step"),
        (Unpaid, "reward nan is not a finite"), (Untold, "'invalid' is None"), (Tolerant, "no text is an invalid turn"),
        (GlobalChance, "draw all chance from reset's seed"), (Shared, "side by side"),
        (Forgetful, "after restore in another instance the same action gives another"),
        (ListKey, "is not hashable"), (ObjectKey, "state_key gives another key"),
        (Meddling, "changes the environment"), (HiddenDraw, "changes what the next step gives"),
        (Overrated, "is 1.5, not in [0, 1]"), (Unmeasured, "does not raise NoStepMeasure"),
        (Undeclared, "set has_step_measure = False"), (LowValue, "value is 0.0, but the best step_quality"),
        (Playing, "the demonstrator changes the environment"), (Hopeless, "solved none of 32"),
        (Moving, "reseed changes the state key"), (Telling, "show_budget=False the first messages depend"),
        (Mute, "show_budget=True the turns left are not told"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
def test_broken_environments_are_told_what_is_wrong(cls, words):
    assert words in "\n".join(check(cls, cls.Config()))


def test_command_line(capsys):
    assert main([GUESS, "--config", '{"max_turns": 4, "show_budget": true}']) == 0
    assert "keeps the contract" in capsys.readouterr().out
    assert main([f"{__name__}:Overrated"]) == 1
    assert "problem: step_quality" in capsys.readouterr().out
    for argv in (["no_such_module:X"], ["lake"], [GUESS, "--config", '{"turns": 4}'], [GUESS, "--config", "{"]):
        assert main(argv) == 1 and capsys.readouterr().err.startswith(f"error: {argv[0]}: ")


@cache
def best(n, turns):
    """Success probability of the best questions on n equally likely numbers, by trying them all."""
    return max((split(n, turns, g) for g in range(n)), default=0.0) if turns else 0.0


def split(n, turns, g):
    return (1 + g * best(g, turns - 1) + (n - 1 - g) * best(n - 1 - g, turns - 1)) / n


def test_the_example_knows_its_exact_values():
    env = Guess(GuessConfig())
    for n in range(1, 13):
        for turns in range(1, 6):
            env.low, env.high, env.left, env.secret = 5, 4 + n, turns, 5
            assert env.value() == pytest.approx(best(n, turns))
            for g in range(n):
                assert env.step_quality(str(5 + g)) == pytest.approx(split(n, turns, g))
            for useless in ("4", "x"):
                assert env.step_quality(useless) == pytest.approx(best(n, turns - 1))


def test_the_example_can_be_trained(tmp_path, monkeypatch):
    x = Experiment(
        profile="mine", env=GUESS, env_config=GuessConfig(),
        base=TinyConfig(hidden=16, layers=1, heads=2, vocabulary=300, demonstrations=32),
        train=TrainConfig(updates=2, tasks_per_update=2, group_size=2, save_every=1, probe_every=2, kl_episodes=1),
        evaluation=EvalConfig(tasks=2, samples=2, train_tasks=2, train_samples=2, ks=(1, 2), budget_k=2),
        train_tasks=8, probe_tasks=2, arms=("oracle_q",), analysed=(),
    )  # fmt: skip
    monkeypatch.setattr(stages, "RUNS", tmp_path)
    assert (stages.trained_policy(x, "oracle_q", 0) / "model.safetensors").is_file()
    found = stages.episodes(x, "oracle_q", 0)
    assert len(found) == 4 and {e.env for e in found} == {"guess"}
    assert all(0 <= t.quality <= t.value <= 1 for e in found for t in e.turns)
