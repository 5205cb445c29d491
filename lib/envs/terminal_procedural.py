"""Generated file-system tasks in Harbor's format that a tiny transformer can learn, and demonstrations.

A task names files by their stem ("sort kiwi into out"); the ending is only to be seen with ls. Kinds: find, move,
filter, count, edit, mode, pack, unpack, sort. Moving needs a folder that often is not there yet.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from lib.envs.base import SPLITS, Task
from lib.envs.terminal_tasks import archive

KINDS = ("find", "move", "filter", "count", "edit", "mode", "pack", "unpack", "sort")
BUCKETS = {"train": range(0, 8), "valid": range(8, 9), "test": range(9, 10)}  # of the goal's SHA-256 modulo 10
_NAMES = ("kiwi", "plum", "fig", "pear", "lime", "date", "nut", "oat", "rye", "bean", "corn", "leek")
_ENDS = ("txt", "log", "csv", "dat")
_COLOURS = ("red", "blue", "green", "pink", "grey", "black")


def _lines(rng: random.Random, n: int) -> list[str]:
    return [f"{rng.choice(_COLOURS)} {rng.randint(10, 99)}" for _ in range(n)]


def _same(path: str, text: str) -> str:
    return f'[ "$(cat {path})" = "{text}" ]'


def _task(rng: random.Random, kind: str) -> tuple[str, dict[str, str], list[str], list[str], str]:
    """(instruction, files of /app, setup, commands that solve it, the shell condition that tells success)."""
    names = [f"{stem}.{rng.choice(_ENDS)}" for stem in rng.sample(_NAMES, 3)]
    files = {name: _lines(rng, rng.randint(3, 5)) for name in names}
    name, stem = names[0], names[0].partition(".")[0]
    lines, setup = files[name], []
    if kind == "find":
        word = rng.choice([w for w in _NAMES if not any(n.startswith(w) for n in names)])
        lines.insert(rng.randint(0, len(lines)), f"{word} {rng.randint(10, 99)}")
        ask, plan = f"write the name of the file with {word} to out", [f"grep -l {word} * > out"]
        check = _same("out", name)
    elif kind == "move":
        end, folder = rng.choice(_ENDS), rng.choice(("old", "keep", "bin"))
        moved = [f"{stem}.{end}" for stem in rng.sample(_NAMES, 2)]
        files = {n: t for n, t in files.items() if not n.endswith(f".{end}")} | {n: _lines(rng, 2) for n in moved}
        setup = [f"mkdir {folder}"] if rng.random() < 0.5 else []
        ask, plan = (
            f"move all {end} files to folder {folder}",
            [f"mkdir {folder}"] * (not setup) + [f"mv *.{end} {folder}"],
        )
        check = f'[ "$(ls {folder})" = "$(printf "%s\\n" {" ".join(sorted(moved))})" ] && ! ls *.{end} >/dev/null'
    elif kind == "filter":
        colour = rng.choice(lines).split()[0]
        ask, plan = f"copy the {colour} lines of {stem} to out", [f"grep {colour} {name} > out"]
        check = _same("out", "\n".join(x for x in lines if x.startswith(colour)))
    elif kind == "count":
        ask, plan = f"write the number of lines of {stem} to out", [f"wc -l < {name} > out"]
        check = _same("out", str(len(lines)))
    elif kind == "edit":
        old = rng.choice(lines).split()[0]
        new = rng.choice([c for c in _COLOURS if c != old])
        ask, plan = f"change {old} to {new} in {stem}", [f"sed -i s/{old}/{new}/ {name}"]
        check = _same(name, "\n".join(x.replace(old, new) for x in lines))
    elif kind == "mode":
        mode = rng.choice(("600", "640", "755", "444", "400"))
        ask, plan, check = f"set the mode of {stem} to {mode}", [f"chmod {mode} {name}"], ""
        check = f'[ "$(stat -c %a {name})" = {mode} ]'
    elif kind == "pack":
        ask, plan = f"pack {stem} as {stem}.tar", [f"tar cf {stem}.tar {name}"]
        check = (
            f'[ "$(tar tf {stem}.tar)" = {name} ] && [ "$(tar xOf {stem}.tar)" = "$(printf "%s\\n" {_quoted(lines)})" ]'
        )
    elif kind == "unpack":
        inside = f"{rng.choice([n for n in _NAMES if n != stem])}.new"
        files[f"{stem}.tar"], lines = (
            [base64.b64encode(archive({inside: [0o644, "\n".join(lines) + "\n"]})).decode()],
            lines,
        )
        del files[name]
        ask, plan, check = f"unpack {stem}", [f"tar xf {stem}.tar"], _same(inside, "\n".join(lines))
    else:
        rng.shuffle(lines)
        lines[:] = sorted(set(lines), reverse=True)
        ask, plan = f"sort the lines of {stem} into out", [f"sort {name} > out"]
        check = _same("out", "\n".join(sorted(lines)))
    return (
        ask,
        {n: "\n".join(t) + "\n" if not n.endswith(".tar") else t[0] for n, t in files.items()},
        setup,
        plan,
        check,
    )


def _quoted(lines: list[str]) -> str:
    return " ".join(f'"{x}"' for x in lines)


def _data(ask: str, files: dict[str, str], setup: list[str], plan: list[str], check: str) -> dict[str, Any]:
    test = (
        f"#!/bin/bash\ncd /app\nif {check}; then r=1; else r=0; fi 2>/dev/null\necho $r > /logs/verifier/reward.txt\n"
    )
    return dict(
        instruction=ask, workdir="/app", setup=[f"cd /app; {s}" for s in setup], image="", network=False,
        files={f"app/{n}": [0o644, t, "base64"] if n.endswith(".tar") else [0o644, t] for n, t in files.items()},
        tests={"tests/test.sh": [0o755, test]}, needs=[], memory_mb=2048, cpus=1, verify_s=60.0,
        solution={"solution/solve.sh": [0o755, "\n".join(["#!/bin/bash", "set -e", *plan, ""])]},
    )  # fmt: skip


def _stream(kinds: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any], str]]:
    for i in itertools.count():
        rng = random.Random(f"terminal-{i}")
        made = _task(rng, rng.choice(kinds))
        yield i, _data(*made), f"{made[0]}\n{made[4]}"


def procedural_tasks(split: str, n: int, kinds: tuple[str, ...] = KINDS) -> tuple[Task, ...]:
    """The first n generated tasks of a split. The SHA-256 of the goal (instruction and success condition) names the
    split, so that no goal of valid or test is ever met in training. Raises ValueError for an unknown split."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
    mine = (
        Task(f"terminal-{i:06d}", data)
        for i, data, goal in _stream(kinds)
        if int(hashlib.sha256(goal.encode()).hexdigest(), 16) % 10 in BUCKETS[split]
    )
    return tuple(itertools.islice(mine, n))


def demonstrator(task: Task, seed: int) -> Callable[[object], str]:
    """Plays ls, the solution's commands, submit, or, for half of the seeds, does without ls and names files by stem and
    star; with a probability drawn uniformly from the seed (0: an expert, 1: random play) a turn is a random command
    instead: a look, the right command damaged, an early submit."""
    rng = random.Random(f"terminal-demo-{seed}")
    noise = rng.random()
    names = [path.removeprefix("app/") for path in task.data["files"]]
    plan = task.data["solution"]["solution/solve.sh"][1].splitlines()[2:]
    if rng.random() < 0.5:
        plan = ["ls", *plan]
    else:
        for name in names:
            plan = [p.replace(f" {name}", f" {name.partition('.')[0]}*") for p in plan]
    plan.append("submit")
    swaps = [*names, *_COLOURS, "out", "grep", "sort", "wc", "755", "600", "xf", "cf"]

    def damaged() -> str:
        words = rng.choice([p for p in plan if p not in ("ls", "submit")]).split(" ")
        words[rng.randrange(len(words))] = rng.choice(swaps)
        return " ".join(words)

    at = 0

    def act(_env) -> str:
        nonlocal at
        if rng.random() < noise:
            return rng.choice(("ls", f"cat {rng.choice(names)}", "cat out", damaged(), damaged(), damaged(), "submit"))
        at += 1
        return plan[min(at, len(plan)) - 1]

    return act
