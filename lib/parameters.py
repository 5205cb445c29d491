"""The parameters cell of a notebook: the names that it declares, their types, and the check of given values."""

from __future__ import annotations

import ast
import difflib
import json
from typing import Any, NamedTuple

import nbformat

TYPES = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict, "None": type(None)}


class Parameter(NamedTuple):
    """A default, and the names of the types that the parameter takes (keys of TYPES)."""

    default: Any
    types: tuple[str, ...]


def read_parameters(nb: nbformat.NotebookNode) -> dict[str, Parameter]:
    """The parameters of a notebook, from its code cell tagged `parameters` (none without such a cell).

    Types come from the annotation, else from the default; a bare `name = None` takes a string too.
    Raises ValueError where the cell has anything but `name[: type] = literal` lines.
    """
    cells = [c for c in nb.cells if c.cell_type == "code" and "parameters" in c.metadata.get("tags", [])]
    if len(cells) > 1:
        raise ValueError(f"{len(cells)} cells are tagged 'parameters', expected one")
    try:
        nodes = ast.parse(cells[0].source).body if cells else []
    except SyntaxError as error:
        raise ValueError(f"parameters cell: {error}") from error
    found: dict[str, Parameter] = {}
    for node in nodes:
        try:
            (target,) = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            default = ast.literal_eval(node.value)
            types = ("None", "str") if default is None else (type(default).__name__,)
            if isinstance(node, ast.AnnAssign):
                types = tuple(t.partition("[")[0].strip() for t in ast.unparse(node.annotation).split("|"))
            if not set(types) <= set(TYPES):
                raise ValueError(f"types are {', '.join(TYPES)}")
            check_parameter(target.id, default, Parameter(default, types))
            found[target.id] = Parameter(default, types)
        except (AttributeError, ValueError) as error:
            raise ValueError(
                f"parameters cell, {ast.unparse(node)!r}: not 'name[: type] = literal' ({error})"
            ) from error
    return found


def find_parameter(specs: dict[str, Parameter], name: str) -> Parameter:
    """The parameter of this name, or ValueError with the names there are."""
    if name not in specs:
        close = difflib.get_close_matches(name, specs, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"no parameter {name!r}{hint}; there are: {', '.join(specs) or 'none'}")
    return specs[name]


def check_parameter(name: str, value: Any, spec: Parameter) -> Any:
    """`value`, or ValueError where its type is not the parameter's. A float takes an int and makes it a float. Where
    all elements of a default list are of one type, so must the new ones be."""
    if type(value) is int and "float" in spec.types and "int" not in spec.types:
        value = float(value)
    if not any(type(value) is TYPES[t] for t in spec.types):
        raise ValueError(f"parameter {name}: {value!r} is {type(value).__name__}, expected {' or '.join(spec.types)}")
    kinds = {type(v).__name__ for v in spec.default} if type(spec.default) is list else set()
    if type(value) is list and len(kinds) == 1 and kinds <= set(TYPES):
        value = [check_parameter(f"{name}[{i}]", v, Parameter(None, tuple(kinds))) for i, v in enumerate(value)]
    return value


def parse_parameter(name: str, text: str, spec: Parameter) -> Any:
    """A command line value: the text itself where the parameter takes a string, else JSON (and True, False, None).

    Raises ValueError where it is neither.
    """
    if "str" in spec.types:
        return text
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        raise ValueError(f"parameter {name}: cannot read {text!r} as {' or '.join(spec.types)}") from None
