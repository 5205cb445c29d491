"""What a step's result depends on (its key) and where it came from (its manifest)."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KEY_PACKAGES = ("torch", "transformers", "trl", "peft", "tokenizers", "gymnasium", "numpy")
_PACKAGE = Path(__file__).resolve().parent
# What this process has loaded: a source file edited later must not lend its new hash to the old code still in memory.
_LOADED = {path: path.read_text("utf-8") for path in _PACKAGE.rglob("*.py")}


def source_hash(*modules: str) -> str:
    """SHA-256 over the source of modules (dotted names) and of all that they import from their own package or `lib`,
    also inside functions. Comments, docstrings and layout do not count. Modules named only in strings (the environment
    registry) are not followed: name them too.

    Raises ValueError for a module without source, RuntimeError when a file changed since this process loaded it.
    """
    packages = {__name__.partition(".")[0]} | {m.partition(".")[0] for m in modules}
    digests: dict[str, str] = {}
    todo = list(modules)
    while todo:
        name = todo.pop()
        if name in digests or name.partition(".")[0] not in packages:
            continue
        file = _module_file(name)
        if file is not None:
            digests[name], imports = _parse(_text(file), name, file.name == "__init__.py")
            todo += imports
        elif name in modules:
            raise ValueError(f"no source found for module {name!r}; give source= importable module names")
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def _module_file(name: str) -> Path | None:
    top, *rest = name.split(".")
    # __main__ is another module in each script and notebook.
    spec = importlib.util.find_spec(top) if top != "__main__" else None
    if spec is not None and spec.submodule_search_locations is None:
        return Path(spec.origin) if not rest and str(spec.origin).endswith(".py") else None
    for base in spec.submodule_search_locations if spec else ():
        path = Path(base, *rest).resolve()
        for file in (path / "__init__.py", path.with_name(path.name + ".py")):
            if file.is_file():
                return file
    return None


def _text(file: Path) -> str:
    text = file.read_text("utf-8")
    if _LOADED.setdefault(file, text) != text:
        raise RuntimeError(f"{file} was edited after this process loaded it; restart the process (or kernel) to use it")
    return text


@functools.cache
def _parse(text: str, module: str, is_package: bool) -> tuple[str, tuple[str, ...]]:
    """Digest of the syntax tree, and the dotted names that it imports, with their parent packages."""
    tree = ast.parse(text)
    names = [module]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module if is_package else module.rpartition(".")[0]
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names += [f"{base}.{alias.name}" for alias in node.names]
        if isinstance(getattr(node, "body", None), list):  # without docstrings, those of fields included
            node.body = [n for n in node.body if not (isinstance(n, ast.Expr) and _is_text(n.value))]
    parents = {".".join(parts[:i]) for parts in (n.split(".") for n in names) for i in range(1, len(parts) + 1)}
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(sorted(parents))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def canonical(value: Any, where: str = "config") -> Any:
    """`value` as plain JSON data, different for different values: dataclasses and enums carry their class, 1, 1.0,
    True and "1" stay apart, tuples and lists are the same. Raises TypeError with the path of any other type."""
    if isinstance(value, enum.Enum):
        return {"__enum__": f"{type(value).__module__}:{type(value).__qualname__}.{value.name}"}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [canonical(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if type(value) is dict:
        if bad := [k for k in value if type(k) is not str or k.startswith("__")]:
            raise TypeError(f"{where}: keys must be strings that do not start with '__', got {bad[0]!r}")
        return {k: canonical(v, f"{where}[{k!r}]") for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: canonical(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)}
        return {"__class__": f"{type(value).__module__}:{type(value).__qualname__}"} | fields
    hint = "; a path says nothing of its contents: use hash_folder" if isinstance(value, os.PathLike) else ""
    raise TypeError(
        f"{where} is a {type(value).__name__}; a step's key takes dataclasses, dicts, tuples, lists, enums, str, bool, "
        f"int, float and None{hint}"
    )


def step_key(name: str, config: Any, source: str, inputs: Sequence[str]) -> str:
    """SHA-256 (hex) of all that a step depends on. source: from `source_hash`; inputs: keys and hashes."""
    # Without the build tag (+cpu, +cu130), so that a run made on a GPU machine is found again on a laptop.
    numbers = {package: versions()[package].partition("+")[0] for package in ("python", *KEY_PACKAGES)}
    parts = [name, canonical(config), source, canonical(inputs, "inputs"), numbers]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """Python (major.minor) and the installed versions of the libraries that make the numbers, or "absent"."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for package in (*KEY_PACKAGES, "vllm"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def hash_folder(path: str | Path) -> str:
    """SHA-256 over names and contents of all files under a folder (a model), hidden ones (`.cache`, `.git`) left out.

    Raises ValueError when it is no folder, has no file, or holds a link to a folder or to nothing.
    """
    names = sorted(p.relative_to(path).as_posix() for p in Path(path).rglob("*"))
    names = [n for n in names if not n.startswith(".") and "/." not in n]
    links = [n for n in names if Path(path, n).is_symlink() and not Path(path, n).is_file()]
    files = [(n, file_hash(Path(path, n))) for n in names if Path(path, n).is_file()]
    if links or not files:
        raise ValueError(f"cannot hash folder {path}: " + (f"{links[0]} is a link to no file" if links else "no files"))
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 (hex) of a file of any size."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def git_state() -> dict[str, Any]:
    """`commit` (hex) and `dirty` (uncommitted changes outside results/); both None where git does not know."""
    try:
        run = functools.partial(subprocess.run, cwd=_PACKAGE.parent, capture_output=True, text=True, check=True)
        commit = run(["git", "rev-parse", "HEAD"]).stdout.strip()
        return {"commit": commit, "dirty": bool(run(["git", "status", "--porcelain", "--", ".", ":!results"]).stdout)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def machine() -> dict[str, Any]:
    """System, CPUs, GPU (where torch is loaded) and threads."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch and torch.cuda.is_available() else None
    threads = os.environ.get("OMP_NUM_THREADS")
    return {"system": platform.platform(), "cpus": os.cpu_count(), "gpu": gpu, "OMP_NUM_THREADS": threads}
