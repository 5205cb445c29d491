"""Check an environment against the contract of lib/envs/base.py and say in words what is wrong with it.

python -m lib.envs.check my_package.my_env:MyEnv --config '{"max_turns": 6}'

Each check plays short episodes of the demonstrator, with odd texts in between, and stops at its first problem. Whether
an episode ends by itself is not checked: the rollout engine enforces the budget.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
from contextlib import closing
from typing import Any

import numpy as np

from lib.envs.base import SPLITS, Env, NoStepMeasure, Task, env_class
from lib.envs.check_play import ODD_TEXTS, Problem, Subject, need, play, play_turn
from lib.manifest import canonical
from lib.rollout import Job

DEMONSTRATIONS = 32  # episodes of which a demonstrator must solve one


def _config(s: Subject) -> None:
    need(isinstance(s.cls, type) and issubclass(s.cls, Env), "the class does not derive from lib.envs.base.Env")
    missing = ", ".join(sorted(s.cls.__abstractmethods__))
    need(not missing, f"methods are missing: {missing}")
    need(isinstance(getattr(s.cls, "name", None), str), "the class attribute `name` is not a string")
    made = dataclasses.is_dataclass(s.config) and s.config.__dataclass_params__.frozen
    need(made, "Config is not a frozen dataclass: use @dataclass(frozen=True)")
    turns, shown = getattr(s.config, "max_turns", None), getattr(s.config, "show_budget", None)
    need(type(turns) is int and turns >= 1, f"Config needs `max_turns`, an int of at least 1, and has {turns!r}")
    need(type(shown) is bool, f"Config needs `show_budget`, a bool, and has {shown!r}")
    hash(s.config)
    canonical(s.config)  # what a step's key in the cache can hold


def _tasks(s: Subject) -> None:
    where: dict[str, str] = {}
    for split in SPLITS:
        found = s.cls.tasks(s.config, split, s.n)
        need(all(isinstance(t, Task) for t in found), f"tasks of {split} are not all of type Task")
        need(len(found) == s.n, f"{s.n} {split} tasks were asked for and {len(found)} given: raise ValueError instead")
        need(len({t.id for t in found}) == s.n, f"two {split} tasks have the same id")
        for n, what in ((s.n, "the second time"), (1, "when only the first is asked for")):
            again = [t.digest() for t in s.cls.tasks(s.config, split, n)]
            need(again == [t.digest() for t in found[:n]], f"{split} tasks are other ones {what}")
        for name in {key for t in found for key in (t.id, json.dumps(t.data, sort_keys=True))}:
            need(name not in where, f"a task stands in two splits, {where.get(name)} and {split}: {name[:80]}")
            where[name] = split
        s.tasks[split] = tuple(found)
    try:
        s.cls.tasks(s.config, "no-such-split", 1)
    except ValueError:
        return
    raise Problem("tasks() of an unknown split does not raise ValueError")


def _demonstrator(s: Subject) -> None:
    """Also makes the scripts: an episode of the demonstrator, and the same with an odd text before each of its own."""
    solved = 0
    for i in range(DEMONSTRATIONS):
        job = Job(s.tasks["train"][i % s.n], i, s.config.max_turns)
        texts = []
        with s.start(job) as env:
            act, twin = (s.cls.demonstrator(s.config, job.task, job.seed) for _ in range(2))
            for _ in range(job.budget):
                before = env.snapshot()
                texts.append(act(env))
                need(isinstance(texts[-1], str), f"the demonstrator returned {texts[-1]!r}, not a text")
                need(env.snapshot() == before, "the demonstrator changes the environment (its snapshot)")
                need(twin(env) == texts[-1], "two demonstrators with the same seed do different things")
                step = play_turn(env, texts[-1])[0]
                if step.done:
                    break
            solved += bool(step.info["solved"])
        if i < s.n:
            odd = [text for j, own in enumerate(texts) for text in (ODD_TEXTS[(i + j) % len(ODD_TEXTS)], own)]
            s.scripts.extend([(job, texts), (job, odd[: job.budget])])
    need(solved, f"the demonstrator solved none of {DEMONSTRATIONS} episodes: a base policy cannot learn from it")


def _steps(s: Subject) -> None:
    job, alone = s.scripts[0][0], []
    with closing(s.cls(s.config)) as env:
        found, again = (env.reset(job.task, job.seed, job.budget) for _ in range(2))
    fits = [isinstance(m, dict) and {type(m.get("role")), type(m.get("content"))} == {str} for m in found]
    need(found and all(fits), f"reset must return messages with texts as role and content, not {found!r}")
    need(found[-1]["role"] == "user", f"the last message of reset has role {found[-1]['role']!r}, not 'user'")
    need(found == again, "reset with the same task and seed returns other messages the second time")
    for script in s.scripts:
        runs = []
        for seed in (1, 2):  # of the generators that an environment must not use
            random.seed(seed)
            np.random.seed(seed)
            runs += play(s, script)
        need(runs[0] == runs[1], "the same seed and actions give another episode: draw all chance from reset's seed")
        alone.append(runs[0])
    need(play(s, *s.scripts) == alone, "episodes played side by side disturb each other: keep state on the instance")


def _odd_texts(s: Subject) -> None:
    invalid = []
    for text in ODD_TEXTS:
        with s.start(s.scripts[0][0]) as env:
            invalid.append(play_turn(env, text)[0].info["invalid"])
    need(any(invalid), f"no text is an invalid turn, not even {ODD_TEXTS[1]!r}: set info['invalid']")


def _snapshots(s: Subject) -> None:
    for job, texts in s.scripts:
        with s.start(job) as env, closing(s.cls(s.config)) as other:
            for text in texts:
                blob, key = env.snapshot(), env.state_key()
                need(env.state_key() == key, "state_key gives another key when asked twice")
                first = play_turn(env, text)
                for again, which in ((other, "another instance"), (env, "the same instance")):
                    again.restore(blob)
                    need(again.state_key() == key, f"after restore in {which} state_key is another")
                    need(repr(again.state_key()) == repr(key), f"equal state keys have different texts: {key!r:.80}")
                    for a, b, what in zip(
                        first, play_turn(again, text), ("step", "snapshot", "state_key"), strict=True
                    ):
                        need(a == b, f"after restore in {which} the same action gives another {what}: {text[:40]!r}")
                if first[0].done:
                    break


def _reseed(s: Subject) -> None:
    for job, texts in s.scripts:
        with s.start(job) as env:
            blob, key = env.snapshot(), env.state_key()
            try:
                env.reseed(7)
            except NotImplementedError:
                return  # allowed: it is not offered
            need(env.state_key() == key, "reseed changes the state key: it must change what is to come only")
            first = env.step(texts[0])
            env.restore(blob)
            env.reseed(7)
            need(env.step(texts[0]) == first, "after reseed with the same seed the same action gives another step")


def _budgets(s: Subject) -> None:
    full, told = s.config.max_turns, {}
    hidden = s._replace(config=dataclasses.replace(s.config, show_budget=False))
    for job, texts in s.scripts:
        for config in (hidden.config, dataclasses.replace(s.config, show_budget=True)):
            with closing(s.cls(config)) as env:
                told[config.show_budget] = [env.reset(job.task, job.seed, budget) for budget in (1, full)]
        need(told[False][0] == told[False][1], "with show_budget=False the first messages depend on the budget")
        need(full == 1 or told[True][0] != told[True][1], "with show_budget=True the turns left are not told")
        budget = (full + 1) // 2
        (short,), (long,) = (play(hidden, (dataclasses.replace(job, budget=b), texts)) for b in (budget, full))
        same = all(a[0] == b[0] for a, b in zip(short[: budget - 1], long, strict=False))
        need(same, f"with show_budget=False an episode of {budget} turns differs from the start of one of {full}")


def _measure(s: Subject) -> None:
    for job, texts in s.scripts:
        (undisturbed,) = play(s, (job, texts))
        with s.start(job) as env:
            for (step, _, _), text in zip(undisturbed, texts, strict=False):
                before = env.snapshot()
                found = [_quality(s.cls, env, action) for action in (text, ODD_TEXTS[1], *s.cls.action_names)]
                need(env.snapshot() == before, f"step_quality changes the environment: {text[:40]!r}")
                if s.cls.value is not Env.value:
                    value, best = env.value(), max(found)
                    fits = math.isclose(value, best, abs_tol=1e-9) or (value > best and not s.cls.action_names)
                    need(fits, f"value is {value!r}, but the best step_quality of the actions is {best!r}")
                    need(env.snapshot() == before, f"value changes the environment: {text[:40]!r}")
                need(env.step(text) == step, f"step_quality or value changes what the next step gives: {text[:40]!r}")


def _quality(cls: type[Env], env: Env, action: str) -> float:
    try:
        q = env.step_quality(action)
    except NoStepMeasure:
        need(not cls.has_step_measure, "step_quality raises NoStepMeasure: set has_step_measure = False")
        return math.nan
    need(cls.has_step_measure, "has_step_measure is False, but step_quality does not raise NoStepMeasure")
    need(0 <= q <= 1, f"step_quality({action[:40]!r}) is {q!r}, not in [0, 1]")
    return float(q)


CHECKS = (_config, _tasks, _demonstrator, _steps, _odd_texts, _snapshots, _reseed, _budgets, _measure)


def check(cls: type[Env], config: Any, n: int = 4) -> list[str]:
    """What is wrong with an environment, in words; empty when it keeps the contract. n: tasks of each split."""
    subject, problems = Subject(cls, config, n, {}, []), []
    for one in CHECKS:
        try:
            one(subject)
        except Problem as e:
            problems.append(str(e))
        except Exception as e:  # the environment's own
            problems.append(f"while checking {one.__name__.strip('_')}: {type(e).__name__}: {e}")
        if problems and one in CHECKS[:2] + CHECKS[2:3] * (not subject.scripts):
            return [*problems, "the other checks need this mended first"]
    return problems


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status, 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m lib.envs.check", description="Check an environment.")
    parser.add_argument("env", help="module:Class, or a name that comes with this project")
    parser.add_argument("--config", default="{}", metavar="JSON", help="fields of its Config (default: its defaults)")
    parser.add_argument("--tasks", type=int, default=4, help="tasks of each split to try (%(default)s)")
    args = parser.parse_args(argv)
    try:
        cls = env_class(args.env)
        problems = check(cls, cls.Config(**json.loads(args.config)), args.tasks)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        print(f"error: {args.env}: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"problem: {p}" for p in problems) or f"{args.env} keeps the contract ({len(CHECKS)} checks)")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
