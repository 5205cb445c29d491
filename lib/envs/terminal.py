"""Terminal-Bench: one shell command a turn in a sandbox, then submit; the task's own tests decide (paper, appendix).

Tasks are in Harbor's format (lib/envs/terminal_tasks.py): "procedural" (generated, lib/envs/terminal_procedural.py),
"local" (hand-written, data/terminal) or "official" (Terminal-Bench 2.0, a folder of it or the Hugging Face mirror).
They run in bubblewrap or in Docker (lib/envs/terminal_run.py). The tests are laid out after submit only; the reward is
the number they write to /logs/verifier/reward.txt. An episode that runs out of turns without submit is not tested, so
that one set of rollouts at Tmax serves every budget.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lib.envs.base import SPLITS, Env, Step, Task
from lib.envs.terminal_procedural import FILES, KINDS, demonstrator, procedural_tasks
from lib.envs.terminal_run import PROVIDERS
from lib.envs.terminal_sandbox import Limits, Ran
from lib.envs.terminal_tasks import LOCAL, official_folder, read_tasks

LONGEST_COMMAND = 20_000  # characters; the kernel takes no argument beyond 128 KiB
_RULES = "Solve the task in a shell. Reply with one command. You see its exit code and output. When done, reply submit."
_FENCE = re.compile(r"```(?:bash|sh|shell)?[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class TerminalConfig:
    """What is played. Raises ValueError for any value that is not allowed."""

    task_set: str = "procedural"
    """"procedural", "local" or "official"."""
    folder: str = ""
    """Official: a folder with tasks in Harbor's format; empty: the Hugging Face mirror of Terminal-Bench 2.0."""
    provider: str = "bwrap"
    """"bwrap" (no Docker, no network) or "docker" (the tasks' own images)."""
    max_turns: int = 10
    """Tmax: turns of a full-budget episode."""
    show_budget: bool = False
    """Tell the policy how many turns are left. Hidden by default: then one rollout at Tmax serves every T."""
    max_invalid: int = 3
    """That many answers in a row without a command end the episode."""
    kinds: tuple[str, ...] = KINDS
    """Procedural: kinds of tasks, see lib/envs/terminal_procedural.py."""
    trees: int = 32
    """Procedural: file trees of a split; a command that was run on one before costs nothing."""
    parts: int = 2
    """Procedural: a goal has one to so many parts, each about a file of its own."""
    noise: float = 1.0
    """Procedural: how far from the solution the worst demonstrations are, a share of turns."""
    shown: int = 300
    """Characters of stdout and of stderr in an observation; the middle of longer ones is left out."""
    limits: Limits = Limits()
    """What a command may use."""

    def __post_init__(self):
        choices = {"task_set": ("procedural", "local", "official"), "provider": tuple(PROVIDERS),
                   "show_budget": (False, True)}  # fmt: skip
        for field, allowed in choices.items():
            value = getattr(self, field)
            if type(value) is not type(allowed[0]) or value not in allowed:
                raise ValueError(f"{field}={value!r}: must be one of {', '.join(map(repr, allowed))}")
        for field, low in (("max_turns", 1), ("max_invalid", 1), ("trees", 1), ("parts", 1), ("shown", 20)):
            value = getattr(self, field)
            if type(value) is not int or value < low:
                raise ValueError(f"{field}={value!r}: must be an integer of at least {low}")
        if self.parts > FILES or not 0 <= self.noise <= 1:
            raise ValueError(f"parts={self.parts}: at most {FILES}; noise={self.noise}: must be in [0, 1]")
        if type(self.kinds) is not tuple or not self.kinds or not set(self.kinds) <= set(KINDS):
            raise ValueError(f"kinds={self.kinds!r}: must be a tuple of {', '.join(map(repr, KINDS))}")
        if not isinstance(self.limits, Limits) or type(self.folder) is not str:
            raise ValueError(f"limits={self.limits!r}, folder={self.folder!r}: must be Limits and a path as text")
        if self.provider == "docker" and self.task_set != "official":
            raise ValueError("provider='docker': only the official tasks have images")


class Terminal(Env):
    """See the module's docstring. A turn's reward is 0 but for submit's; solved is a reward of 1."""

    name = "terminal"
    title = "Terminal-Bench"
    Config = TerminalConfig
    has_step_measure = False  # no published measure rates a single command

    def __init__(self, config: TerminalConfig):
        if not isinstance(config, TerminalConfig):
            raise ValueError(f"config of type {type(config).__name__}: must be TerminalConfig")
        super().__init__(config)
        self._at, self._task = PROVIDERS[config.provider](config.limits), None

    @classmethod
    def tasks(cls, config: TerminalConfig, split: str, n: int) -> tuple[Task, ...]:
        """The first n tasks that the provider can run. The local and the official set are test sets as a whole.

        Raises ValueError where fewer exist, ConnectionError where the official set cannot be fetched.
        """
        if split not in SPLITS or type(n) is not int or n < 1:
            raise ValueError(f"split={split!r}, n={n!r}: split must be one of {', '.join(SPLITS)}, n at least 1")
        if config.task_set == "procedural":
            return procedural_tasks(split, n, config.kinds, config.trees, config.parts)
        if split != "test":
            raise ValueError(f"split={split!r}: the {config.task_set} tasks are a test set; train on 'procedural'")
        every = read_tasks(LOCAL if config.task_set == "local" else config.folder or official_folder())
        docker = config.provider == "docker"
        found = [t for t in every if (t.data["image"] if docker else not t.data["needs"])]
        if n > len(found):
            left = "; ".join(f"{t.id} needs {t.data['needs'][0]}" for t in every if t.data["needs"])
            raise ValueError(
                f"{n} tasks asked for, {len(found)} of {len(every)} run under {config.provider}. {left:.500}"
            )
        return tuple(found[:n])

    @classmethod
    def demonstrator(cls, config: TerminalConfig, task: Task, seed: int) -> Callable[[Env], str]:
        """See `terminal_procedural.demonstrator`. Raises ValueError for the other task sets, which have none."""
        if config.task_set != "procedural":
            raise ValueError(f"task {task.id}: the {config.task_set} tasks have no demonstrations")
        return demonstrator(task, seed, config.noise)

    def reset(self, task: Task, seed: int, budget: int | None = None) -> list[dict[str, str]]:
        """See Env. `seed` changes nothing: what chance a command has is its own.

        Raises ValueError for a task that is none, or cannot run here, or a budget outside 1..Tmax; SandboxUnavailable.
        """
        budget = self.config.max_turns if budget is None else budget
        if not 1 <= budget <= self.config.max_turns:
            raise ValueError(f"budget={budget}: must be in 1..{self.config.max_turns} (max_turns)")
        if missing := {"instruction", "files", "tests", "needs", "workdir"} - task.data.keys():
            raise ValueError(f"task {task.id} is not a terminal task: no {', '.join(sorted(missing))}")
        self._at.open(task.data)
        self._task, self.budget, self.turns, self.streak, self.over = task, int(budget), 0, 0, False
        user = self._with_budget(task.data["instruction"])
        return [{"role": "system", "content": _RULES}, {"role": "user", "content": user}]

    def step(self, action: str) -> Step:
        """See Env. info: `solved`, `invalid`, `exit` (of the command, else None), `limit` (the limit that ended it); at
        submit also `score` and `verifier` (the end of the tests' output, "no reward" first where they wrote none).

        Raises RuntimeError when the episode is over or its budget is spent.
        """
        self._check_started()
        if self.over or self.turns >= self.budget:
            raise RuntimeError(f"the episode is over after {self.turns} of {self.budget} turns: call reset or restore")
        command = parse(action)
        self.turns += 1
        self.streak = self.streak + 1 if command is None else 0
        info = {"solved": False, "invalid": command is None, "exit": None, "limit": ""}
        if command == "submit":
            self.over, (reward, said) = True, self._at.verify()
            info |= {"verifier": ("no reward\n" if reward is None else "") + said[-2000:], "score": reward or 0.0}
            return Step("", info["score"], True, info | {"solved": reward == 1.0})
        if command is None:
            self.over = self.streak >= self.config.max_invalid
            text = "invalid: reply with one command or submit"
        else:
            ran = self._at.run(command)
            text, info["exit"], info["limit"] = self._show(ran), ran.code, ran.note
        return Step(text if self.over else self._with_budget(text), 0.0, self.over, info)

    def solve(self) -> Ran:
        """Run the reference solution of the task on the present files; no turn of the episode."""
        self._check_started()
        return self._at.solve()

    def snapshot(self) -> bytes:
        """See Env. Compressed JSON: the task, the counters, all files of the sandbox. Of a container under Docker the
        working folder only."""
        self._check_started()
        files = base64.b85encode(self._at.save()).decode()
        state = [self._task.id, self._task.data, [self.turns, self.budget, self.streak, self.over], files]
        return zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 1)

    def restore(self, blob: bytes) -> None:
        """See Env. Raises ValueError for bytes that are not a snapshot, or are one with a larger budget than Tmax."""
        try:
            name, data, (turns, budget, streak, over), files = json.loads(zlib.decompress(blob))
        except (zlib.error, TypeError, ValueError) as error:
            raise ValueError(f"not a terminal snapshot: {blob[:40]!r}") from error
        if budget > self.config.max_turns:
            raise ValueError(f"snapshot with a budget of {budget} turns, max_turns is {self.config.max_turns}")
        self._at.load(data, base64.b85decode(files))
        self._task = Task(name, data)
        self.turns, self.budget, self.streak, self.over = turns, budget, streak, over

    def reseed(self, seed: int) -> None:
        """See Env. Nothing to do: no chance of the environment's own is still to come."""
        self._check_started()

    def state_key(self) -> tuple[str, str, int]:
        """Task, digest of all files (names, modes, contents), invalid answers in a row: what the next observations and
        the reward depend on. What the agent has read and the turn are not in it."""
        self._check_started()
        return self._task.id, self._at.digest()[:16], self.streak

    def close(self) -> None:
        self._at.close()

    def _check_started(self) -> None:
        if self._task is None:
            raise RuntimeError("no episode: call reset or restore first")

    def _show(self, ran: Ran) -> str:
        note = f" ({ran.note}{', its changes are lost' if ran.undone else ''})" if ran.note else ""
        lines = [f"exit {ran.code}{note}", self._cut(ran.stdout)]
        lines += [f"stderr: {self._cut(ran.stderr)}"] if ran.stderr.strip() else []
        return "\n".join(line for line in lines if line)

    def _cut(self, text: str) -> str:
        text, most = text.rstrip(), self.config.shown
        return (
            text if len(text) <= most else f"{text[: most // 2]}\n[{len(text) - most} left out]\n{text[-most // 2 :]}"
        )

    def _with_budget(self, text: str) -> str:
        n: Any = self.budget - self.turns
        return f"{text}\nYou have {n} turn{'s' * (n != 1)} left." if self.config.show_budget else text


def parse(action: str) -> str | None:
    """The command (of a ``` block, if there is one), "submit", or None where there is none that bash could take."""
    fenced = _FENCE.findall(action)
    text = (fenced[-1] if fenced else action).strip()
    if text.lower() == "submit":
        return "submit"
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text if text and "\0" not in text and len(text) <= LONGEST_COMMAND else None
