"""Python values as JSON and back, with tuples, sets and non-text keys kept apart. Used on both sides of the wall."""

from __future__ import annotations

from typing import Any


def encode(value: Any) -> Any:
    """A JSON-able form of None, bool, int, float, str, list, tuple, dict, set and frozenset, nested.

    Lists stay lists; the others become {"tuple": [...]}, {"set": [...]}, {"dict": [[key, value], ...]}.
    Raises TypeError for any other type.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(v) for v in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": [encode(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    raise TypeError(f"a value of type {type(value).__name__} cannot be handed over")


def decode(data: Any) -> Any:
    """The inverse of `encode`. Makes builtin types only, so that comparing them runs no foreign code.

    Raises ValueError or TypeError for data that `encode` does not make.
    """
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if isinstance(data, list):
        return [decode(v) for v in data]
    if isinstance(data, dict) and len(data) == 1:
        (kind, items), = data.items()  # fmt: skip
        if kind == "dict":
            return {decode(k): decode(v) for k, v in items}
        if kind in ("tuple", "set") and isinstance(items, list):
            return (tuple if kind == "tuple" else set)(decode(v) for v in items)
    raise ValueError(f"not an encoded value: {str(data)[:80]}")
