"""From an action text to function calls, and their execution on simulators that the episode owns.

A model's text is hostile: it is parsed with `ast`, its arguments must be literals, and only documented methods of the
given instances are called. Nothing is evaluated. (The benchmark's own executor evaluates the text and keeps instances
in module globals, so that rollouts leak into one another.)
"""

from __future__ import annotations

import ast
import contextlib
import copy
import decimal
import difflib
import inspect
import json
import pickle
import random
import re
import warnings
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from lib.envs.bfcl_data import function_docs, load_simulators, load_state

MAX_CHARACTERS = 8000  # of an action
MAX_CALLS = 50  # in an action; the longest ground truth of a user turn has 34
MAX_NODES = 20_000  # files and directories of a file system; the largest official task has some hundreds
MAX_COMPACT = 80  # characters of a procedural observation, per call
MAX_INTEGER, MAX_DIGITS = 10**18, 1000  # MathAPI: size of an integer; of an exponent, a precision, decimal places

_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"\A\s*```(?:python)?|```\s*\Z")
_LOOKS_LIKE_CALLS = re.compile(r"\[|[A-Za-z_][\w.]*\(")


class CallError(ValueError):
    """An action that begins like a list of calls and is none; the message is for the model."""


class RunawayState(RuntimeError):
    """A simulator's state has become too large to be kept: the episode cannot go on."""


class Call(NamedTuple):
    """One function call with literal arguments."""

    name: str
    args: tuple
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        shown = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"{self.name}({','.join(shown)})"


def parse(text: str) -> list[Call]:
    """The calls of an action such as `[ls(), cd(folder='a')]` (brackets may be left out); [] for any other message.

    A message without calls ends the user turn, as in the benchmark. `<think>` and code fences are taken off. Raises
    CallError for a text that begins like calls and is not a list of calls with literal arguments.
    """
    text = _FENCE.sub("", _THINK.sub("", text)).strip()
    if not _LOOKS_LIKE_CALLS.match(text):
        return []
    if len(text) > MAX_CHARACTERS:
        raise CallError(f"{len(text)} characters, at most {MAX_CHARACTERS} allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the model's strings
            tree = ast.parse(text if text.startswith("[") else f"[{text}]", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CallError("not a list of calls like [f(x=1), g()]") from None
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    if len(nodes) > MAX_CALLS:
        raise CallError(f"{len(nodes)} calls, at most {MAX_CALLS} allowed")
    return [_call(node) for node in nodes]


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise CallError("not a list of calls like [f(x=1), g()]")
    try:
        kwargs = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
        args = tuple(ast.literal_eval(a) for a in node.args)
        plain = _plain([*args, *kwargs.values()]) and None not in kwargs  # the name None: given as **mapping
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        plain = False
    if not plain:
        raise CallError(f"arguments of {node.func.id[:50]} must be literal values")
    return Call(node.func.id, args, kwargs)


def _plain(value: Any) -> bool:
    """Text, numbers, True, False, None and lists, tuples, dictionaries of them: no bytes, sets or complex numbers."""
    if isinstance(value, dict):
        return all(map(_plain, value.keys())) and all(map(_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (str, int, float))


def new_instances(data: dict[str, Any]) -> dict[str, Any]:
    """Fresh simulators (class name → instance) of a task, in its initial state."""
    out = {}
    for name in data["classes"]:
        out[name] = load_simulators()[name]()
        if name != "MathAPI":  # has no state
            config = copy.deepcopy(data["initial_config"].get(name, {}))
            out[name]._load_scenario(config, long_context=data["category"] == "long_context")
    return out


def functions(data: dict[str, Any]) -> set[str]:
    """Names of the functions a task may call: those listed in it, else all documented ones of its classes."""
    if "functions" in data:
        return set(data["functions"])
    return {doc["name"] for name in data["classes"] for doc in function_docs(name)}


def execute(instances: dict[str, Any], calls: Sequence[Call], allowed: Collection[str]) -> list[str]:
    """Run calls in order and return one response text each, worded as the benchmark's executor words it.

    A call that fails, of an unknown function or with wrong arguments, gives `Error during execution: …`. Raises
    RunawayState (see there).
    """
    out = []
    for call in calls:
        try:
            out.append(_respond(instances, call, allowed))
        except Exception as error:  # whatever a simulator raises on odd arguments is the model's to read
            out.append(f"Error during execution: {error}")
        if "GorillaFileSystem" in instances and call.name in ("cp", "mv"):
            _check_size(instances["GorillaFileSystem"])
    return out


@lru_cache(maxsize=1024)
def ground_truth(text: str) -> list[tuple[list[str], dict[str, Any]]]:
    """Per user turn of a task (JSON of its data): the ground truth's responses and the simulators after it."""
    data = json.loads(text)
    instances, out = new_instances(data), []
    for calls in data["ground_truth"]:
        responses = execute(instances, [c for t in calls for c in parse(t)], functions(data))
        # a copy, as the next user turn goes on from here
        out.append((responses, load_state(pickle.dumps(instances))))
    return out


def _respond(instances: dict[str, Any], call: Call, allowed: Collection[str]) -> str:
    # Where two classes share a function name the class listed last has it, as in the benchmark.
    owners = [name for name, instance in instances.items() if call.name in vars(type(instance))]
    if call.name not in allowed or call.name.startswith("_") or not owners:
        near = difflib.get_close_matches(call.name[:50], sorted(allowed), 1)
        raise ValueError(f"unknown function '{call.name[:50]}'" + f", did you mean '{near[0]}'?" * bool(near))
    method = getattr(instances[owners[-1]], call.name)
    with contextlib.ExitStack() as stack:
        if owners[-1] == "MathAPI":
            _check_numbers(method, call)
            import mpmath  # here, as only this simulator needs it

            # The simulator sets the precision of the whole process: put it back afterwards.
            stack.enter_context(decimal.localcontext())
            stack.enter_context(mpmath.workdps(mpmath.mp.dps))
        result = method(*call.args, **call.kwargs)
        if isinstance(result, dict):
            with contextlib.suppress(TypeError, ValueError):
                return json.dumps(result)
        return str(result)


def _check_numbers(method: Any, call: Call) -> None:
    """Refuse what would take MathAPI very long or very much memory, such as power(9, 10**9) or multiply('a', 10**9)."""
    for name, value in inspect.signature(method).bind(*call.args, **call.kwargs).arguments.items():
        if name.startswith("unit") and isinstance(value, str):
            continue
        limit = MAX_DIGITS if name in ("exponent", "precision", "decimal_places") else MAX_INTEGER
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, (int, float)):
                raise ValueError(f"{name} must be a number")
            if isinstance(number, int) and abs(number) > limit:
                raise ValueError(f"{name} is too large")


def _check_size(files: Any) -> None:
    """Copies of a directory share what is in it, so that moving them into one another can grow without bound."""
    stack, seen = [files.root], 0
    while stack:
        inside = getattr(stack.pop(), "contents", {})
        seen += len(inside)
        if seen > MAX_NODES:
            raise RunawayState(f"more than {MAX_NODES} files and directories")
        stack.extend(inside.values())


def compact(response: str) -> str:
    """A response as an observation of procedural tasks: the values only, without long texts, or the error's start."""
    try:
        value = json.loads(response)
    except ValueError:
        value = None if response == "None" else response
    if isinstance(value, dict) and "error" in value:
        return f"error: {value['error']}"[:MAX_COMPACT]
    parts = [p for p in _leaves(value) if len(p) <= 30] or [*_leaves(value)]
    return ", ".join(parts)[:MAX_COMPACT] or "ok"


def _leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [leaf for v in value for leaf in _leaves(v)]
    return [] if value is None else [str(value)]


def canonical_state(instances: dict[str, Any]) -> str:
    """Text that is equal for equal simulators, whatever the order of the calls that led there.

    All attributes count, private ones and the state of the simulator's random numbers included; not the (standing)
    clock, links to parent directories and the order of dictionary entries.
    """
    return repr([_canonical(vars(i)) for i in instances.values()])


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        items = {k: v for k, v in value.items() if k not in ("_api_description", "_last_modified", "parent")}
        if "_current_dir" in items:  # also where it is: two directories may have the same contents
            items["_current_path"] = _path(items["_current_dir"])
        return sorted(((repr(k), _canonical(v)) for k, v in items.items()), key=lambda item: item[0])
    if isinstance(value, random.Random):
        return hash(value.getstate()[1])  # of integers only: the same in every process
    if isinstance(value, (list, tuple)):
        return [_canonical(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    return _canonical(vars(value)) if hasattr(value, "__dict__") else value


def _path(directory: Any) -> list[str]:
    names = []
    while directory is not None:
        names.append(directory.name)
        directory = directory.parent
    return names
