"""Procedural programming tasks that a tiny model can learn: a function given by examples, to be written in Python.

A function is a chain of at most `depth` operations on a list of digits, a word or a number, written one a line:
`x=sorted(x)`, `x=x[::-1]`. Two chains that agree on all inputs are one function, written as the first chain found
(shorter ones first). A function belongs to the one
split that its SHA-256 names, so that no function stands in two splits, whatever the depth.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

SETS = 2  # sets of inputs a function is asked with; few, so that graded programs are met again
SHOWN, HIDDEN = 3, 8  # tests of a task
BUCKETS = {"train": range(0, 6), "valid": range(6, 7), "test": range(7, 10)}  # of a function's SHA-256 modulo 10
SLIP = 0.03  # share of a demonstrator's answers that break off


class Op(NamedTuple):
    """One operation: its Python text, the types of x it takes and gives, its family (the hint), and what it does."""

    text: str
    takes: str
    gives: str
    family: str
    run: Callable[[Any], Any]


def _ops() -> tuple[Op, ...]:
    def family(name: str, takes: str, gives: str, members: dict[str, Callable[[Any], Any]]) -> list[Op]:
        return [Op(text, takes, gives, name, run) for text, run in members.items()]

    cuts = {"x[1:]": lambda x: x[1:], "x[:-1]": lambda x: x[:-1], "x[::2]": lambda x: x[::2]}
    maps = {
        "[v+1 for v in x]": lambda x: [v + 1 for v in x],
        "[v*2 for v in x]": lambda x: [v * 2 for v in x],
        "[v%3 for v in x]": lambda x: [v % 3 for v in x],
    }
    turns = {"x[::-1]": lambda x: x[::-1], "x*2": lambda x: x * 2}
    letters = {
        "x.upper()": str.upper,
        "x.title()": str.title,
        "x.replace('a','o')": lambda x: x.replace("a", "o"),
    }
    picks = {"x[0]": lambda x: x[0], "x[-1]": lambda x: x[-1], "len(x)": len}
    grow = {"x+1": lambda x: x + 1, "x*2": lambda x: x * 2, "x*x": lambda x: x * x}
    shrink = {"x%3": lambda x: x % 3, "x//2": lambda x: x // 2, "-x": lambda x: -x}
    return (
        *family("cut", "list", "list", cuts),
        *family("arrange", "list", "list", {"sorted(x)": sorted, **turns}),
        *family("map", "list", "list", maps),
        *family("reduce", "list", "number", {"sum(x)": sum, "max(x)": max, "min(x)": min}),
        *family("pick", "list", "number", picks),
        *family("cut", "word", "word", cuts),
        *family("arrange", "word", "word", {"x+x[::-1]": lambda x: x + x[::-1], **turns}),
        *family("letters", "word", "word", letters),
        *family("count", "word", "number", {"len(x)": len, "x.count('a')": lambda x: x.count("a")}),
        *family("grow", "number", "number", grow),
        *family("shrink", "number", "number", shrink),
    )


OPS = _ops()


class Function(NamedTuple):
    """A function: its chain of operations (indices of OPS), its program, its outputs on all inputs of its type."""

    chain: tuple[int, ...]
    text: str
    outputs: tuple[Any, ...]

    @property
    def takes(self) -> str:
        return OPS[self.chain[0]].takes

    @property
    def gives(self) -> str:
        return OPS[self.chain[-1]].gives


def _program(chain: tuple[int, ...]) -> str:
    return "\n".join(f"x={OPS[i].text}" for i in chain)


@lru_cache(maxsize=1)
def inputs() -> dict[str, tuple[Any, ...]]:
    """For each type SETS × (SHOWN + HIDDEN) different inputs, set after set."""
    rng = random.Random("deepcoder inputs")
    make = {
        "list": lambda: tuple(rng.randrange(10) for _ in range(rng.randrange(3, 6))),
        "word": lambda: "".join(rng.choice("abcdrt") for _ in range(rng.randrange(3, 6))),
        "number": lambda: rng.randrange(100),
    }
    found: dict[str, dict[Any, None]] = {kind: {} for kind in make}
    for kind, one in make.items():
        while len(found[kind]) < SETS * (SHOWN + HIDDEN):
            found[kind][one()] = None
    return {kind: tuple(list(v) if kind == "list" else v for v in values) for kind, values in found.items()}


@lru_cache(maxsize=4)
def functions(depth: int) -> tuple[Function, ...]:
    """All functions of at most `depth` operations that are defined on all inputs and not constant. depth: 1 to 4."""
    if not 1 <= depth <= 4:
        raise ValueError(f"depth={depth}: must be in 1..4")
    seen = {repr((kind, values)) for kind, values in inputs().items()}  # the identity is not a task
    layer: list[tuple[tuple[int, ...], tuple[Any, ...]]] = []
    found: list[Function] = []
    for length in range(1, depth + 1):
        new = []
        starts = [((), kind, values) for kind, values in inputs().items()] if length == 1 else []
        for chain, kind, values in starts or [(c, OPS[c[-1]].gives, v) for c, v in layer]:
            for i, op in enumerate(OPS):
                if op.takes != kind:
                    continue
                try:
                    outputs = tuple(op.run(v) for v in values)
                except (IndexError, ValueError):  # of an empty list
                    continue
                key = repr((OPS[(*chain, i)[0]].takes, outputs))
                if key not in seen and len({repr(o) for o in outputs}) > 1:
                    seen.add(key)
                    new.append(((*chain, i), outputs))
        layer = new
        found += [Function(chain, _program(chain), outputs) for chain, outputs in new]
    return tuple(found)


def _digest(f: Function) -> str:
    return hashlib.sha256(f"{f.takes} {f.text}".encode()).hexdigest()


def split_functions(depth: int, split: str) -> list[Function]:
    """The functions of a split, in the order of their hashes."""
    mine = [f for f in functions(depth) if int(_digest(f), 16) % 10 in BUCKETS[split]]
    return sorted(mine, key=_digest)


def procedural_tasks(depth: int, split: str, n: int) -> list[tuple[str, dict[str, Any]]]:
    """The first n tasks of a split: (id, data). The first of them have different functions; then come other inputs.

    Raises ValueError where fewer exist.
    """
    mine = split_functions(depth, split)
    if n > len(mine) * SETS:
        raise ValueError(
            f"{n} {split} tasks asked for, depth {depth} has {len(mine) * SETS}: use a larger depth or fewer"
        )
    pairs = ((mine[i % len(mine)], i // len(mine)) for i in range(n))
    return [(f"deepcoder-{split}-{_digest(f)[:8]}-{s}", _data(f, s)) for f, s in pairs]


def _data(f: Function, s: int) -> dict[str, Any]:
    size = SHOWN + HIDDEN
    own = slice(s * size, (s + 1) * size)
    return {
        "kind": "lines",
        "fn": "f",
        "inputs": [[v] for v in inputs()[f.takes][own]],
        "outputs": [[v] for v in f.outputs[own]],
        "shown": SHOWN,
        "takes": f.takes,
        "hint": ", then ".join(OPS[i].family for i in f.chain),
        "solution": f.text,
    }


def compact(value: Any) -> str:
    """A value as text without spaces: fewer tokens."""
    return repr(value).replace(", ", ",")


def demonstrator(depth: int, data: dict[str, Any], seed: int) -> Callable[[int], str]:
    """A player of mixed quality: turn (0-based) → answer.

    Two probabilities are drawn from `seed`. skill (0–1): that a turn answers with a program of the hinted families that
    was not tried before, else with a random function of the same types. insight (0–0.4): that the former is the right
    one whatever was tried. A share SLIP of the answers breaks off early.
    """
    rng = random.Random(f"deepcoder demonstrator {seed}")
    skill, insight = rng.random(), rng.uniform(0, 0.4)
    target = next(f for f in functions(depth) if (f.takes, f.text) == (data["takes"], data["solution"]))
    like = [[i for i, op in enumerate(OPS) if op[1:4] == OPS[j][1:4]] for j in target.chain]
    untried = [_program(chain) for chain in product(*like)]
    others = [f.text for f in functions(depth) if (f.takes, f.gives) == (target.takes, target.gives)]
    rng.shuffle(untried)

    def act(turn: int) -> str:
        text = rng.choice(others)
        if rng.random() < skill:
            text = target.text if rng.random() < insight or not untried else untried[-1]
        if text in untried:
            untried.remove(text)
        return text[: rng.randrange(len(text))] if rng.random() < SLIP else text

    return act
