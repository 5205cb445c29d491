"""Benchmarks of the smaller parts, and how much of this machine's arithmetic the update uses: see lib/bench.py."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from lib.config import ROOT
from lib.envs.sql import Sql
from lib.envs.sql_engine import build, run
from lib.envs.sql_tasks import SqlConfig
from lib.metrics.pass_kt import pass_kt
from lib.policies.attention import grouped_sdpa


def timed(call: Callable[[], Any], repetitions: int) -> float:
    """Median wall seconds of a call, after an untimed one."""
    seconds = []
    for i in range(repetitions + 1):
        start = time.perf_counter()
        call()
        seconds += [time.perf_counter() - start] if i else []
    return median(seconds)


def peak(repetitions: int, size: int = 1024) -> float:
    """Floating-point operations a second of one large float32 matmul on one thread."""
    a, b = torch.randn(2, size, size)
    return 2 * size**3 / timed(lambda: a @ b, repetitions)


def bare(update: Callable[[], Any], repetitions: int) -> float:
    """Seconds that the arithmetic of `update` takes alone: its linear layers and attentions, forward and backward, at
    their own shapes, one after the other, without all that lies between them."""
    calls: list[tuple[Callable, tuple, dict]] = []
    names = ("linear", "scaled_dot_product_attention")
    plain = {n: getattr(torch.nn.functional, n) for n in names}

    def recorded(name: str, *args, **kwargs):
        fresh = [a.detach().clone().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args]
        calls.append((plain[name], tuple(fresh), kwargs))
        return plain[name](*args, **kwargs)

    for n in names:
        setattr(torch.nn.functional, n, partial(recorded, n))
    try:
        update()
    finally:
        for n in names:
            setattr(torch.nn.functional, n, plain[n])

    def once(f: Callable, args: tuple, kwargs: dict, gradient: torch.Tensor | None) -> None:
        out = f(*args, **kwargs)
        if gradient is not None:
            torch.autograd.grad(out, [a for a in args if torch.is_tensor(a) and a.requires_grad], gradient)

    total = 0.0
    for f, args, kwargs in calls:
        out = f(*args, **kwargs)
        total += timed(partial(once, f, args, kwargs, torch.ones_like(out) if out.requires_grad else None), repetitions)
    return total


def arithmetic_rows(update: Callable[[], Any], repetitions: int) -> list[tuple]:
    """The update's operations a second beside the peak of this machine, and beside those of its own layers alone."""
    with FlopCounterMode(display=False) as counter:
        update()
    flops, seconds = counter.get_total_flops(), timed(update, repetitions)
    best, alone = peak(repetitions), bare(update, repetitions)
    note, speed = f"{flops / 1e9:.1f} GFLOP, counted by torch; anchor: ", flops / seconds / 1e9
    return [
        ("update, of the matmul peak", speed, best / 1e9, "GFLOP/s", note + "1024 x 1024 matmul"),
        ("update, of what its shapes allow", speed, flops / alone / 1e9, "GFLOP/s", note + "its layers alone"),
    ]  # fmt: skip


def attention_row(repetitions: int, rows: int = 32, tokens: int = 1024) -> tuple:
    """Layers a second that attend from one new token a row, in the shape of Qwen2.5-0.5B and bfloat16."""
    heads, groups, width = 14, 2, 64
    query = torch.randn(rows, heads, 1, width, dtype=torch.bfloat16)
    key, value = torch.randn(2, rows, groups, tokens, width, dtype=torch.bfloat16)
    visible = torch.rand(rows, 1, 1, tokens) < 0.9
    module = SimpleNamespace(num_key_value_groups=heads // groups, is_causal=True)
    calls = [partial(f, module, query, key, value, visible) for f in (grouped_sdpa, sdpa_attention_forward)]
    ours, other = (call()[0].float() for call in calls)
    if not torch.allclose(ours, other, atol=0.01):
        raise RuntimeError(f"attention differs by {(ours - other).abs().max():.1g}")
    seconds = [timed(call, repetitions) for call in calls]
    note = f"{rows} rows of {tokens} tokens, {heads} heads on {groups}; anchor: transformers' sdpa"
    return ("attention of one new token", *(1 / s for s in seconds), "layers/s", note)


def sandbox_rows(repetitions: int, programs: int) -> list[tuple]:
    """Test runs a second of lib/sandbox, on all cores. In its own process: forking this one, with torch, costs more."""
    code = f"import json, lib.sandbox.bench as b\nfor r in b.bench({repetitions}, {programs}): print(json.dumps(r))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    speeds: dict[str, list[float]] = {}
    for r in map(json.loads, done.stdout.splitlines()):
        speeds.setdefault(r["way"], []).append(r["runs_per_s"])
    anchor = median(speeds.pop("Manager + Process"))
    note = "all cores; anchor: Manager + Process a grade, without containment"
    return [(f"sandbox, {way}", median(s), anchor, "test runs/s", note) for way, s in speeds.items()]


def sql_row(repetitions: int, statements: int) -> tuple:
    """Guarded statements a second, each on a throw-away copy: of a stored image, or built from the script each time."""
    script = Sql.tasks(SqlConfig(), "train", 1)[0].data["script"]
    database = build("one", script)
    (table, *_), asked = database.tables, range(statements)
    ours = timed(lambda: [run(database, f"SELECT * FROM {table} WHERE {i}") for i in asked], repetitions)
    other = timed(lambda: [run(build("one", script), f"SELECT * FROM {table} WHERE {i}") for i in asked], repetitions)
    note = "guarded, on a fresh copy each; anchor: the copy is built from its script"
    return ("SQL statements", statements / ours, statements / other, "statements/s", note)


def naive_surface(turns: np.ndarray, ks: tuple[int, ...], t_max: int) -> np.ndarray:
    """Pass@(K,T) as it is usually written: the estimator of arXiv 2107.03374 for each task, K and T by itself."""
    out = np.empty((len(turns), len(ks), t_max))
    for i, row in enumerate(turns):
        for j, k in enumerate(ks):
            for t in range(1, t_max + 1):
                n, c = len(row), int((row <= t).sum())
                out[i, j, t - 1] = 1.0 if n - c < k else 1 - np.prod(1 - k / np.arange(n - c + 1, n + 1))
    return out


def analysis_row(repetitions: int) -> tuple:
    """Pass@(K,T) surfaces of 200 tasks, 16 samples, 20 budgets a second."""
    rng, ks = np.random.default_rng(0), (1, 2, 3, 4, 6, 8)
    turns = np.where(rng.random((200, 16)) < 0.5, rng.integers(1, 21, (200, 16)), np.inf)
    fast = partial(pass_kt, turns, list(ks), list(range(1, 21)), 20)
    if not np.allclose(fast(), naive_surface(turns, ks, 20)):
        raise RuntimeError("the surface differs from the plain estimator")
    ours, other = timed(fast, repetitions), timed(partial(naive_surface, turns, ks, 20), repetitions)
    return ("analysis, Pass@(K,T) surface", 1 / ours, 1 / other, "surfaces/s", "anchor: the estimator point by point")


def start_row(repetitions: int) -> tuple:
    """Processes a second: the driver up to its plan, and one that imports TRL's trainer, as a script a run does."""
    commands = (["-m", "lib.reproduce", "--dry-run"], ["-c", "from trl import GRPOTrainer"])
    ours, other = (
        timed(partial(subprocess.run, [sys.executable, *c], cwd=ROOT, check=True, capture_output=True), repetitions)
        for c in commands
    )
    return ("start of the driver, up to its plan", 1 / ours, 1 / other, "starts/s", "anchor: import of GRPOTrainer")
