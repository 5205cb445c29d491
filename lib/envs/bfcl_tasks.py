"""Procedural BFCL tasks: short requests over the benchmark's simulators, with a computed ground truth, and their demos.

A task lives in one domain and has one to a few user turns. Facts that a request leaves out (the folder of a file, the
price of a stock, the id of a user, the number of an order, the fuel left) have to be looked up first, so observations
matter. The ground truth holds only calls that every solution has to make, so the official response check is fair: the
one convention is that a folder is left by cd('..'). Everything is checked by the benchmark's own checkers.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from lib.envs.base import SPLITS, Env, Task
from lib.envs.bfcl_calls import Call, parse

BUCKETS = {"train": range(0, 6), "valid": range(6, 8), "test": range(8, 10)}  # of a task's SHA-256 modulo 10
SEEN = 100  # test tasks that are left out: the text format was once chosen looking at the first ones
PATIENCE = 5000  # candidates in a row without a new task after which a split counts as exhausted
NOISE = 0.6  # a demonstrator's share of mistakes is NOISE * u**5, u uniform in [0, 1]: most good, a few near random
BATCH = 0.5  # and the probability that it sends a further call in the same step is uniform in [0, BATCH]
MISTAKES = ("call", "call", "call", "end", "format")
LOOKUPS = ("find", "get_stock_info", "get_user_id", "displayCarStatus", "place_order")

_DIRS = ("bin", "doc", "img", "lib", "log", "tmp")
_FILES = ("box", "cup", "fig", "hat", "ink", "jam", "key", "map")
_WORDS = ("hi", "ok", "yes", "no", "bye", "wow", "hey", "yay")
_PEOPLE = ("Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon")
_SYMBOLS = ("AMD", "F", "GE", "GM", "IBM", "KO", "T", "UPS")
_DOORS = ("driver", "passenger", "rear_left", "rear_right")

# A domain draws the task: initial config of its simulator, and (request, ground-truth calls) for each user turn.
Drawn = tuple[dict[str, Any], list[tuple[str, list[str]]]]


def _files(rng: random.Random, turns: int) -> Drawn:
    dirs, names = rng.sample(_DIRS, 3), rng.sample(_FILES, 4 + turns)
    place = {name: rng.choice(dirs) for name in names[:4]}
    files = {name: {"type": "file", "content": rng.choice(_WORDS)} for name in place}
    inside = {d: {"type": "directory", "contents": {n: files[n] for n in place if place[n] == d}} for d in dirs}
    out, here = [], ""
    for new in names[4:]:
        kind, name, word = rng.choice(("delete", "write", "show", "make")), rng.choice(list(place)), rng.choice(_WORDS)
        folder = rng.choice(dirs) if kind == "make" else place[name]
        calls = [f"find('/','{name}')"] * (kind != "make")
        if folder != here:
            calls += ["cd('..')"] * bool(here) + [f"cd('{folder}')"]
            here = folder
        request, call = {
            "delete": (f"delete '{name}'", f"rm('{name}')"),
            "write": (f"write '{word}' to '{name}'", f"echo('{word}','{name}')"),
            "show": (f"show '{name}'", f"cat('{name}')"),
            "make": (f"make '{new}' in '{folder}'", f"mkdir('{new}')"),
        }[kind]
        if kind == "delete":
            del place[name]
        out.append((request, [*calls, call]))
    return {"root": {"home": {"type": "directory", "contents": inside}}}, out


def _car(rng: random.Random, turns: int) -> Drawn:
    doors = {d: rng.choice(("locked", "unlocked")) for d in _DOORS}
    config = {"fuelLevel": (fuel := rng.randint(3, 9)), "doorStatus": dict(doors)}
    out = []
    for kind in rng.sample(("start", "add", "double", "heat", "lights", "door", "brake"), turns):
        n, door = rng.randint(2, 9), rng.choice(_DOORS)
        word = rng.choice(("on", "off"))
        if kind == "start":
            every = "lockDoors(False,['driver','passenger','rear_left','rear_right'])"
            lock = [every] * ("unlocked" in doors.values())
            doors = dict.fromkeys(doors, "locked")
            out.append(("start the engine", [*lock, "pressBrakePedal(1)", "startEngine('START')"]))
        elif kind == "add":
            fuel += n
            out.append((f"fuel +{n}", [f"fillFuelTank({n})"]))
        elif kind == "double":
            out.append(("double the fuel", ["displayCarStatus('fuel')", f"fillFuelTank({fuel})"]))
            fuel *= 2
        elif kind == "heat":
            out.append((f"heat={n}", [f"adjustClimateControl({n})"]))
        elif kind == "lights":
            out.append((f"lights '{word}'", [f"setHeadlights('{word}')"]))
        elif kind == "door":
            doors[door] = "unlocked" if word == "on" else "locked"
            verb = "unlock" if word == "on" else "lock"
            out.append((f"{verb} '{door}'", [f"lockDoors({word == 'on'},['{door}'])"]))
        else:
            mode = "engage" if word == "on" else "release"
            out.append((f"'{mode}' parking brake", [f"activateParkingBrake('{mode}')"]))
    return config, out


def _stocks(rng: random.Random, turns: int) -> Drawn:
    symbols = rng.sample(_SYMBOLS, 4)
    price, watched, order = {s: rng.randint(2, 9) for s in symbols}, [symbols[0]], rng.randint(1, 7)
    config = {"stocks": {s: {"price": p} for s, p in price.items()}, "watch_list": list(watched), "orders": {}}
    config |= {"order_counter": order, "authenticated": True, "market_status": "Open"}
    config["account_info"] = {"account_id": 1, "balance": 900, "binding_card": 1}
    out, placed = [], []
    for _ in range(turns):
        kinds = ["buy", "buy", "watch", "fund"] + ["drop"] * bool(watched) + ["cancel"] * 3 * bool(placed)
        kind, n = rng.choice(kinds), rng.randint(2, 9)
        if kind == "buy":
            s = rng.choice(symbols)
            out.append((f"buy '{s}' x{n}", [f"get_stock_info('{s}')", f"place_order('Buy','{s}',{price[s]},{n})"]))
            placed.append(order)
            order += 1
        elif kind == "cancel":
            out.append(("cancel my last order", [f"cancel_order({placed.pop()})"]))
        elif kind == "fund":
            out.append((f"deposit ${n}", [f"fund_account({n})"]))
        elif kind == "watch":
            s = rng.choice([s for s in symbols if s not in watched] or symbols)
            watched += [s] * (s not in watched)
            out.append((f"watch '{s}'", [f"add_to_watchlist('{s}')"]))
        else:
            s = watched.pop(rng.randrange(len(watched)))
            out.append((f"unwatch '{s}'", [f"remove_stock_from_watchlist('{s}')"]))
    return config, out


def _messages(rng: random.Random, turns: int) -> Drawn:
    people = rng.sample(_PEOPLE, 4 + turns)
    ids = dict(zip(people, (f"USR{i}" for i in rng.sample(range(1, 10), 4)), strict=False))
    config = {"user_map": dict(ids), "user_count": 9, "current_user": ids[people[0]], "inbox": [], "message_count": 0}
    out, sent = [], []
    for new in people[4:]:
        kind = rng.choice(["tell", "tell", "tell", "add"] + ["unsend"] * 3 * bool(sent))
        word, who = rng.choice(_WORDS), rng.choice(people[1:4])
        if kind == "add":
            out.append((f"add '{new}'", [f"add_contact('{new}')"]))
        elif kind == "unsend":
            who = sent.pop()
            out.append((f"unsend '{who}'", [f"get_user_id('{who}')", f"delete_message('{ids[who]}')"]))
        else:
            out.append((f"tell '{who}' '{word}'", [f"get_user_id('{who}')", f"send_message('{ids[who]}','{word}')"]))
            sent = [s for s in sent if s != who] + [who]
    return config, out


# Domain: simulator, how a task is drawn, and the functions that the task offers.
DOMAINS: dict[str, tuple[str, Callable[[random.Random, int], Drawn], str]] = {
    "files": ("GorillaFileSystem", _files, "find cd rm mkdir cat echo"),
    "car": ("VehicleControlAPI", _car, "startEngine pressBrakePedal lockDoors fillFuelTank displayCarStatus "
            "adjustClimateControl setHeadlights activateParkingBrake"),
    "stocks": ("TradingBot", _stocks, "get_stock_info place_order cancel_order add_to_watchlist "
               "remove_stock_from_watchlist fund_account"),
    "messages": ("MessageAPI", _messages, "get_user_id add_contact send_message delete_message"),
}  # fmt: skip


def generate(domains: Sequence[str], max_user_turns: int, split: str, n: int) -> tuple[Task, ...]:
    """The first n tasks of a split: domain and number of user turns (1 to max_user_turns) are drawn uniformly.

    A task belongs to the one split that the SHA-256 of its data names. Raises ValueError where fewer than n exist.
    """
    found: dict[str, dict] = {}
    skip = SEEN if split == "test" else 0
    i = last = SPLITS.index(split) * 10**9
    while len(found) < skip + n:
        if i - last > PATIENCE:
            left = max(0, len(found) - skip)
            raise ValueError(f"{n} {split} tasks asked for, only {left} found: use more domains or user turns")
        rng = random.Random(f"bfcl/{i}")
        i += 1
        name, draw, functions = DOMAINS[rng.choice(sorted(domains))]
        config, turns = draw(rng, rng.randint(1, max_user_turns))
        data = {"category": "procedural", "classes": [name], "initial_config": {name: config}, "missed": {}}
        data["question"] = [[{"role": "user", "content": request}] for request, _ in turns]
        data |= {"ground_truth": [calls for _, calls in turns], "functions": functions.split()}
        sha = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        if int(sha, 16) % 10 in BUCKETS[split] and sha not in found:
            found[sha], last = data, i
    chosen = list(found.items())[skip:]
    return tuple(Task(f"bfcl-{split}-{k:05d}-{sha[:8]}", data) for k, (sha, data) in enumerate(chosen))


class Demonstrator:
    """Plays the ground truth, in steps of one or more calls, with a share of mistakes drawn once an episode.

    It looks things up where the ground truth does, and never sends calls that need the answer in the same step. After
    a mistake it takes the shortest part of the ground truth, if need be after a cd('..'), that still passes the user
    turn's checks; where there is none it ends the user turn. Mistakes: a call of the task at the wrong time or with a
    wrong value, ending the user turn too early, or text that cannot be parsed.
    """

    def __init__(self, data: dict[str, Any], rng: random.Random):
        self.data, self.rng = data, rng
        self.noise, self.batch = NOISE * rng.random() ** 5, BATCH * rng.random() * ("functions" in data)
        self.calls = [call for calls in data["ground_truth"] for call in calls]
        self.values = list(_values(data["initial_config"]))
        self.turn, self.plan = -1, None

    def __call__(self, env: Env) -> str:
        if env.user_turn != self.turn:
            self.turn, self.plan = env.user_turn, None
        if self.rng.random() < self.noise:
            self.plan = None
            return self._mistake()
        if self.plan is None:
            self.plan = self._repair(env, self.data["ground_truth"][self.turn])
        k = min(1, len(self.plan))
        while 0 < k < len(self.plan) and not self.plan[k - 1].startswith(LOOKUPS) and self.rng.random() < self.batch:
            k += 1
        now, self.plan = self.plan[:k], self.plan[k:]
        return f"[{','.join(now)}]"

    def _repair(self, env: Env, gold: list[str]) -> list[str]:
        back = [[], ["cd('..')"]] if "GorillaFileSystem" in self.data["classes"] else [[]]
        plans = [b + gold[start:] for b in back for start in range(len(gold), -1, -1)]
        return next((plan for plan in plans if env.would_pass(plan)), [])

    def _mistake(self) -> str:
        kind, call = self.rng.choice(MISTAKES), self.rng.choice(self.calls)
        if kind == "end":
            return "[]"
        if kind == "format":
            return f"[{call}"
        name, args, kwargs = parse(call)[0]
        if args and self.rng.random() < 0.5:
            at = self.rng.randrange(len(args))
            others = [v for v in self.values if type(v) is type(args[at])]
            args = (*args[:at], self.rng.choice(others), *args[at + 1 :]) if others else args
        return f"[{Call(name, args, kwargs)}]"


def _values(config: Any):
    """The short words and numbers of an initial config: what a mistaken call is made with."""
    if isinstance(config, dict):
        for key, value in config.items():
            yield from (_values(key) if key not in ("type", "contents", "content", "root", "home") else ())
            yield from _values(value)
    elif isinstance(config, list):
        for value in config:
            yield from _values(value)
    elif isinstance(config, int) or (isinstance(config, str) and len(config) <= 12):
        yield config
