"""BFCL multi-turn as an environment: user turns of requests, answered by function calls on simulated services.

An agent step is one message. `[f(a=1), g()]` runs the calls and shows their results; a message without calls (`[]`)
ends the user turn and brings the next request. The episode is solved when every user turn passes the benchmark's two
checks at its end: the simulators are in the ground truth's state, and the ground truth's responses are among those
seen so far. The reward is 1 for that, else 0. There is no exact step oracle (claim C6b): `step_quality` raises.

Differences from the official harness (bfcl-eval 2026.3.23, prompting mode): the budget T counts agent steps over the
whole task, the messages that end user turns included; text that begins like a call list and cannot be parsed costs a
step and is answered by an error (officially it silently ends the user turn); only functions of the task's classes run,
with literal arguments; the clock stands still; an episode ends at the first user turn that fails
(`stop_at_failed_turn`), since nothing later can mend it.
The episode's state *is* its pickle: after every step it is dumped and loaded again. So a snapshot is free, and an
episode that was branched goes on exactly like one that was not. Episodes share nothing.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lib.envs import bfcl_calls, bfcl_data, bfcl_tasks
from lib.envs.base import SPLITS, Env, Step, Task
from lib.envs.bfcl_calls import Call, CallError, RunawayState
from lib.envs.bfcl_data import CATEGORIES

STEPS_PER_USER_TURN = 20  # of the benchmark: more end the episode without success


@dataclass(frozen=True)
class BFCLConfig:
    """What is played. Raises ValueError for any value that is not allowed."""

    task_set: str = "procedural"
    """"procedural": short generated requests (lib/envs/bfcl_tasks.py). "bfcl": the benchmark's multi-turn tasks."""
    category: str = "base"
    """The benchmark's category: base, miss_func, miss_param or long_context ("bfcl" only)."""
    docs: str = "auto"
    """What the prompt says of the functions. "names" (procedural). "signatures": a line each. "official": JSON docs of
    the task's classes, 35 k characters. "all": of all eight ("bfcl"). "auto": "names" or, for "bfcl", "official"."""
    domains: tuple[str, ...] = tuple(bfcl_tasks.DOMAINS)
    """Simulators that procedural tasks are drawn from."""
    max_user_turns: int = 3
    """A procedural task has 1 to this many user turns (at most 4)."""
    max_turns: int = 20
    """Tmax: agent steps over the whole task."""
    show_budget: bool = False
    """Tell the policy how many turns are left. Hidden by default: then one rollout at Tmax serves every T."""
    max_invalid: int = 3
    """That many messages in a row that cannot be parsed end the episode."""
    stop_at_failed_turn: bool = True
    """End the episode at the first user turn that fails its checks; False plays on without hope, as officially."""

    def __post_init__(self):
        for field, high in (("max_user_turns", 4), ("max_turns", 10**6), ("max_invalid", 10**6)):
            value = getattr(self, field)
            if type(value) is not int or not 1 <= value <= high:
                raise ValueError(f"{field}={value!r}: must be an integer in 1..{high}")
        docs, flags = ("auto", "names", "signatures", "official", "all"), (False, True)
        choices = {"task_set": ("procedural", "bfcl"), "category": CATEGORIES, "docs": docs,
                   "show_budget": flags, "stop_at_failed_turn": flags}  # fmt: skip
        for field, allowed in choices.items():
            value = getattr(self, field)
            if type(value) is not type(allowed[0]) or value not in allowed:
                raise ValueError(f"{field}={value!r}: must be one of {', '.join(map(repr, allowed))}")
        if (self.docs, self.task_set) in (("names", "bfcl"), ("all", "procedural")):
            raise ValueError(f"docs={self.docs!r} is not for task_set={self.task_set!r}")
        if not self.domains or not set(self.domains) <= set(bfcl_tasks.DOMAINS):
            raise ValueError(f"domains={self.domains!r}: must be some of {', '.join(bfcl_tasks.DOMAINS)}")


@lru_cache(maxsize=1024)
def _first_state(text: str, budget: int) -> bytes:
    """The pickled state in which a task (JSON of its data) begins: cheaper to load than to set up for each sample."""
    s = {"user_turn": 0, "steps": 0, "turn_steps": 0, "called": False, "streak": 0, "failed": False, "over": False}
    s |= {"budget": budget, "responses": [], "instances": bfcl_calls.new_instances(json.loads(text))}
    return pickle.dumps(s)


class BFCL(Env):
    """See the module's docstring."""

    name = "bfcl"
    title = "BFCL multi-turn"
    has_step_measure = False
    Config = BFCLConfig

    def __init__(self, config: BFCLConfig):
        if not isinstance(config, BFCLConfig):
            raise ValueError(f"config of type {type(config).__name__}: must be BFCLConfig")
        super().__init__(config)
        self._blob = b""  # empty until reset or restore

    @classmethod
    def tasks(cls, config: BFCLConfig, split: str, n: int) -> tuple[Task, ...]:
        """See Env. Official tasks come in an order fixed by a hash of their number: 100 train, 20 valid, 80 test.
        `Task.data["defect"]` says why an official task is doubtful (bfcl_data.WORDING_NOT_GIVEN; "" for the others)."""
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: must be one of {', '.join(SPLITS)}")
        if n < 1:
            raise ValueError(f"n={n}: must be at least 1")
        if config.task_set == "procedural":
            return bfcl_tasks.generate(config.domains, config.max_user_turns, split, n)
        entries = bfcl_data.official_split(config.category, split)
        if n > len(entries):
            raise ValueError(f"{n} {split} tasks asked for, {config.category} has {len(entries)}")
        return tuple(Task(e["id"], {k: v for k, v in e.items() if k != "id"}) for e in entries[:n])

    @classmethod
    def demonstrator(cls, config: BFCLConfig, task: Task, seed: int) -> Callable[[Env], str]:
        """See bfcl_tasks.Demonstrator: the ground truth with mistakes, and repair where that is possible."""
        return bfcl_tasks.Demonstrator(task.data, random.Random(f"demonstrator/{task.id}/{seed}"))

    def reset(self, task: Task, seed: int, budget: int | None = None) -> list[dict[str, str]]:
        """See Env. The seed is not used: the simulators' randomness is seeded by the task. Raises ValueError for a
        budget outside 1..Tmax and for a task of another environment."""
        budget = self.config.max_turns if budget is None else budget
        if not 1 <= budget <= self.config.max_turns:
            raise ValueError(f"budget={budget}: must be in 1..{self.config.max_turns} (max_turns)")
        if not {"question", "ground_truth", "classes", "initial_config"} <= set(task.data):
            raise ValueError(f"task {task.id}: not a BFCL task, its data has only {sorted(task.data)}")
        self._set_task(task.id, json.dumps(task.data))
        self._blob = _first_state(self._text, int(budget))
        self._s = bfcl_data.load_state(self._blob)
        text = bfcl_data.request(self._data, 0, self.config.docs) + self._budget_line()
        system = bfcl_data.system_prompt(self._data, self.config.docs)
        return [{"role": "system", "content": system}, {"role": "user", "content": text}]

    def step(self, action: str) -> Step:
        """See Env. info: `solved`, `invalid`, `user_turn` (its number before the step) and `turn_passed` (whether the
        user turn that this step ended passed its checks; None where it goes on). A call that fails is not invalid:
        its error text is its result. Raises RuntimeError when the episode is over."""
        self._check_started()
        s, reward = self._s, 0.0
        if s["over"]:
            raise RuntimeError("the episode is over: call reset or restore")
        info = {"solved": False, "invalid": False, "user_turn": s["user_turn"], "turn_passed": None}
        s["steps"] += 1
        try:
            calls = bfcl_calls.parse(action)
            s["streak"] = 0
            text = self._run(calls) if calls else self._end_user_turn(info)
            s["over"] |= s["turn_steps"] > STEPS_PER_USER_TURN
            reward = float(info["solved"])
            self._keep(s)
        except CallError as error:
            info["invalid"] = True
            s["streak"] += 1
            s["over"] = s["streak"] >= self.config.max_invalid
            text = f"Error: {error}"
            self._keep(s)
        except (RunawayState, RecursionError) as error:  # or directories nested too deeply to be pickled
            text = f"Error: {error}"
            self._keep(s | {"over": True, "instances": bfcl_calls.new_instances(self._data)})
        return Step(text + self._budget_line() * (not self._s["over"]), reward, self._s["over"], info)

    def would_pass(self, calls: list[str]) -> bool:
        """Whether the present user turn would pass its checks after these calls, without making them."""
        self._check_started()
        s = bfcl_data.load_state(self._blob)
        made = [c for text in calls for c in bfcl_calls.parse(text)]
        responses = bfcl_calls.execute(s["instances"], made, self._allowed)
        return self._passes(s | {"responses": s["responses"] + responses, "called": s["called"] or bool(made)})

    @property
    def user_turn(self) -> int:
        """Number of the present user turn, from 0."""
        return self._s["user_turn"]

    def snapshot(self) -> bytes:
        """See Env. A pickle of config, task and state; the state is kept pickled, so this costs next to nothing."""
        self._check_started()
        return pickle.dumps((repr(self.config), self._id, self._text, self._blob))

    def restore(self, blob: bytes) -> None:
        """See Env. Raises ValueError for a snapshot of another config and for bytes that are no snapshot."""
        try:
            config, *task, state = bfcl_data.load_state(blob)
        except Exception as error:  # bytes that are no pickle raise almost anything
            raise ValueError(f"not a BFCL snapshot: {blob[:40]!r}") from error
        if config != repr(self.config):
            raise ValueError(f"snapshot of {config}, the environment has {self.config!r}")
        self._set_task(*task)
        self._blob, self._s = state, bfcl_data.load_state(state)

    def state_key(self) -> Hashable:
        """Same state: same task and user turn, all attributes of all simulators equal (private ones and their random
        state included; the clock and the order of dictionary entries not), the same of the task's ground-truth
        responses already obtained, and a call made in this user turn or not. That is all that what follows and the
        success depend on; steps used, invalid messages and other responses are not part of it."""
        self._check_started()
        s, wanted = self._s, Counter(r for responses, _ in self._gold for r in responses)
        obtained = sorted((Counter(s["responses"]) & wanted).elements())
        state = bfcl_calls.canonical_state(s["instances"]) + repr(obtained)
        digest = hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()
        return (self._id, s["user_turn"], s["called"], s["over"], digest)

    def _set_task(self, task_id: str, text: str) -> None:
        if self._blob and (task_id, text) == (self._id, self._text):
            return
        self._id, self._text, self._data, self._gold = task_id, text, json.loads(text), bfcl_calls.ground_truth(text)
        self._allowed = bfcl_calls.functions(self._data)

    def _keep(self, s: dict[str, Any]) -> None:
        self._blob = pickle.dumps(s)
        self._s = bfcl_data.load_state(self._blob)

    def _check_started(self) -> None:
        if not self._blob:
            raise RuntimeError("no episode: call reset or restore first")

    def _run(self, calls: list[Call]) -> str:
        s = self._s
        s["turn_steps"] += 1
        s["called"] = True
        responses = bfcl_calls.execute(s["instances"], calls, self._allowed)
        s["responses"] += responses
        if "functions" in self._data:
            return "\n".join(bfcl_calls.compact(r) for r in responses)
        return repr([{"role": "tool", "name": str(c), "content": r} for c, r in zip(calls, responses, strict=True)])

    def _passes(self, s: dict[str, Any]) -> bool:
        turn = s["user_turn"]
        gold_responses, gold_instances = self._gold[turn]
        if not self._data["ground_truth"][turn]:  # nothing can be done in this turn: officially not checked
            return True
        return s["called"] and bfcl_data.checks_pass(s["instances"], gold_instances, s["responses"], gold_responses)

    def _end_user_turn(self, info: dict[str, Any]) -> str:
        s = self._s
        info["turn_passed"] = self._passes(s)
        s["failed"] |= not info["turn_passed"]
        last = s["user_turn"] == len(self._data["question"]) - 1
        info["solved"] = last and not s["failed"]
        if last or (s["failed"] and self.config.stop_at_failed_turn):
            s["over"] = True
            return ""
        s |= {"user_turn": s["user_turn"] + 1, "turn_steps": 0, "called": False}
        return bfcl_data.request(self._data, s["user_turn"], self.config.docs)

    def _budget_line(self) -> str:
        left = self._s["budget"] - self._s["steps"]
        return f"\nYou have {left} turn{'s' * (left != 1)} left." if self.config.show_budget else ""
