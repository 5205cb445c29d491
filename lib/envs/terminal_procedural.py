"""Generated file-system tasks in Harbor's format that a tiny transformer can learn, and demonstrations.

A goal has one part or several, each about a file of its own, which it names by its stem ("sort kiwi into new"): the
ending is only to be seen with ls. Each split has a few file trees of its own and many goals on each of them, so that a
command's result is often known already (`lib.envs.terminal_run`). Kinds: see KINDS; "move" takes two commands.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from lib.envs.base import SPLITS, Task

KINDS = ("count", "sort", "filter", "mode", "edit", "move", "find", "pack")
BUCKETS = {"train": range(0, 6), "valid": range(6, 8), "test": range(8, 10)}  # of the goal's SHA-256 modulo 10
FILES = 3  # of a tree
_STEMS = ("kiwi", "plum", "fig", "pear", "lime", "date", "nut", "oat")
_ENDS = ("txt", "log", "csv", "dat")
_COLOURS = ("red", "blue", "green", "pink")
_ANIMALS = ("ant", "dog", "cow", "fox", "owl", "bee")  # each in one file of a tree
_OUTS = ("out", "new", "end")  # of the first part, the second, the third
_MODES = ("600", "755", "444")
_MISSES = 2000  # goals in a row that are not new: then there are no more


def _tree(split: str, number: int) -> dict[str, list[str]]:
    """The lines of each file."""
    rng = random.Random(f"terminal-tree-{split}-{number}")
    files = {}
    for stem, animal in zip(rng.sample(_STEMS, FILES), rng.sample(_ANIMALS, FILES), strict=True):
        lines = [animal, *(rng.choice(_COLOURS) for _ in range(rng.randint(2, 4)))]
        rng.shuffle(lines)
        files[f"{stem}.{rng.choice(_ENDS)}"] = [f"{word} {rng.randint(1, 9)}" for word in lines]
    return files


def _same(path: str, lines: list[str], printed: str = "cat") -> str:
    text = "\n".join(lines)
    return f'[ "$({printed} {path})" = "{text}" ]'


def _part(rng: random.Random, kind: str, name: str, lines: list[str], out: str) -> tuple[str, list[str], str]:
    """(what is asked, commands that do it, the shell condition that tells success)."""
    stem = name.partition(".")[0]
    words = [line.split()[0] for line in lines]
    colour = rng.choice([w for w in words if w in _COLOURS])
    if kind == "count":
        return f"count lines of {stem} into {out}", [f"wc -l < {name} > {out}"], _same(out, [str(len(lines))])
    if kind == "sort":
        return f"sort {stem} into {out}", [f"sort {name} > {out}"], _same(out, sorted(lines))
    if kind == "filter":
        found = [line for line in lines if line.startswith(colour)]
        return f"copy {colour} of {stem} into {out}", [f"grep {colour} {name} > {out}"], _same(out, found)
    if kind == "mode":
        mode = rng.choice(_MODES)
        return f"set mode {mode} of {stem}", [f"chmod {mode} {name}"], _same(name, [mode], "stat -c %a")
    if kind == "edit":
        new = rng.choice([c for c in _COLOURS if c != colour])
        done = [line.replace(colour, new) for line in lines]
        return f"change {colour} to {new} in {stem}", [f"sed -i s/{colour}/{new}/ {name}"], _same(name, done)
    if kind == "move":
        check = f"{_same(f'{out}/{name}', lines)} && [ ! -e {name} ]"
        return f"move {stem} to folder {out}", [f"mkdir {out}", f"mv {name} {out}"], check
    if kind == "find":
        animal = next(w for w in words if w in _ANIMALS)
        return f"find file with {animal} into {out}", [f"grep -l {animal} * > {out}"], _same(out, [name])
    check = f"{_same(out, [name], 'tar tf')} && {_same(out, lines, 'tar xOf')}"
    return f"pack {stem} into {out}", [f"tar cf {out} {name}"], check


def _data(files: dict[str, list[str]], parts: list[tuple[str, list[str], str]]) -> dict[str, Any]:
    check = " && ".join(check for *_, check in parts)
    plan = [command for _, commands, _ in parts for command in commands]
    test = f"#!/bin/bash\ncd /app\nif {{ {check}; }} 2>/dev/null; then r=1; else r=0; fi\n"
    test += "echo $r > /logs/verifier/reward.txt\n"
    return dict(
        instruction=", ".join(ask for ask, *_ in parts), workdir="/app", setup=[], image="", network=False, needs=[],
        files={f"app/{name}": [0o644, "\n".join(lines) + "\n"] for name, lines in files.items()},
        tests={"tests/test.sh": [0o755, test]}, memory_mb=2048, cpus=1, verify_s=60.0,
        solution={"solution/solve.sh": [0o755, "\n".join(["#!/bin/bash", "set -e", *plan, ""])]},
    )  # fmt: skip


def _stream(split: str, kinds: tuple[str, ...], trees: int, parts: int) -> Iterator[dict[str, Any]]:
    """Data of new tasks of a split, until none is found any more."""
    rng, known, last = random.Random(f"terminal-{split}"), set(), 0
    for i in itertools.count():
        if i - last > _MISSES:
            return
        number = rng.randrange(trees)
        files = _tree(split, number)
        n = rng.randint(1, parts)
        about = zip(rng.sample(sorted(files), n), _OUTS, strict=False)
        data = _data(files, [_part(rng, rng.choice(kinds), name, files[name], out) for name, out in about])
        goal = f"{data['instruction']}\n{data['tests']['tests/test.sh'][1]}"
        bucket = int(hashlib.sha256(goal.encode()).hexdigest(), 16) % 10
        if bucket in BUCKETS[split] and (number, goal) not in known:
            known.add((number, goal))
            last = i
            yield data


def procedural_tasks(
    split: str, n: int, kinds: tuple[str, ...] = KINDS, trees: int = 32, parts: int = 2
) -> tuple[Task, ...]:
    """The first n generated tasks of a split, all different, of 1 to `parts` parts on one of `trees` file trees.

    The SHA-256 of the goal (instruction and success condition) names the split, so that no goal of valid or test is
    ever met in training. Raises ValueError for an unknown split, and where fewer than n tasks are found.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
    found = list(itertools.islice(_stream(split, kinds, trees, parts), n))
    if len(found) < n:
        raise ValueError(f"{n} {split} tasks asked for, {len(found)} found: allow more kinds, trees or parts")
    return tuple(Task(f"terminal-{split}-{i:05d}", data) for i, data in enumerate(found))


def demonstrator(task: Task, seed: int, noise: float = 1.0) -> Callable[[object], str]:
    """Plays ls, the solution's commands, submit, or, for half of the seeds, does without ls and names files by stem and
    star. With a probability drawn uniformly from [0, `noise`] by the seed, a turn is something else instead: a look,
    the next command with a wrong file or ending, an early submit."""
    rng = random.Random(f"terminal-demo-{seed}")
    share = rng.uniform(0, noise)
    names = [path.removeprefix("app/") for path in task.data["files"]]
    plan = task.data["solution"]["solution/solve.sh"][1].splitlines()[2:]
    if rng.random() < 0.5:
        plan = ["ls", *plan]
    else:
        for name in names:
            plan = [p.replace(f" {name}", f" {name.partition('.')[0]}*") for p in plan]
    plan.append("submit")
    at = 0

    def damaged() -> str:
        words = plan[min(at, len(plan) - 1)].split(" ")
        at_file = [w for w in range(1, len(words)) if words[w].partition(".")[0].rstrip("*") in _STEMS]
        for w in at_file:
            words[w] = rng.choice((*names, f"{words[w].partition('.')[0].rstrip('*')}.{rng.choice(_ENDS)}"))
        return " ".join(words) if at_file else "ls"

    def act(_env) -> str:
        nonlocal at
        if rng.random() < share:
            return rng.choice(("ls", f"cat {rng.choice(names)}", damaged(), damaged(), damaged(), "submit"))
        at += 1
        return plan[min(at, len(plan)) - 1]

    return act
