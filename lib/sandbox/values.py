"""Python values as JSON and back, with tuples, sets and non-text keys kept apart. Used on both sides of the wall."""

from __future__ import annotations

from typing import Any

DEEPEST = 100  # levels of nesting


def encode(value: Any, deepest: int = DEEPEST) -> Any:
    """A JSON-able form of None, bool, int, float, str, list, tuple, dict, set and frozenset, nested.

    Lists stay lists; the others become {"tuple": [...]}, {"set": [...]}, {"dict": [[key, value], ...]}.
    Raises TypeError for any other type and for more than `deepest` levels.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, (list, tuple, set, frozenset, dict)) or not deepest:
        what = f"of type {type(value).__name__}" if deepest else f"of more than {DEEPEST} levels"
        raise TypeError(f"a value {what} cannot be handed over")
    pairs = isinstance(value, dict)
    items = [encode(list(v) if pairs else v, deepest - 1) for v in (value.items() if pairs else value)]
    if isinstance(value, list):
        return items
    return {"dict" if pairs else "tuple" if isinstance(value, tuple) else "set": items}


def decode(data: Any, deepest: int = DEEPEST) -> Any:
    """The inverse of `encode`. Makes builtin types only, so that comparing them runs no foreign code.

    Raises ValueError or TypeError for data that `encode` does not make.
    """
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    kind, items = next(iter(data.items())) if isinstance(data, dict) and len(data) == 1 else ("list", data)
    if kind not in ("list", "tuple", "set", "dict") or not isinstance(items, list) or not deepest:
        raise ValueError(f"not an encoded value, or more than {DEEPEST} levels")
    return {"list": list, "tuple": tuple, "set": set, "dict": dict}[kind](decode(v, deepest - 1) for v in items)
