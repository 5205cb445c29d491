"""The step cache: an expensive step is done once, survives a crash, and is redone when anything it depends on changes.

A step's key is a hash of its config, the source of the `lib` modules that it uses, its inputs (panel, model, earlier
steps) and the versions of the libraries that make the numbers. Its directory is `<root>/<name>-<12 hex digits>`; it
counts as finished only when `DONE`, written last, is in it and the files still have the checksums recorded there.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lib.manifest import canonical, file_hash, git_state, hash_folder, machine, source_hash, step_key, versions

__all__ = [
    "NotMade", "append_jsonl", "found_only", "git_state", "hash_folder", "load_manifest", "read_jsonl", "run_step",
    "source_hash", "step_key",
]  # fmt: skip
HASH_BELOW = 50_000_000  # bytes; larger output files are checked by size only
_FOUND_ONLY: ContextVar[bool] = ContextVar("found_only", default=False)


class NotMade(LookupError):
    """A step is not in the cache, and `found_only` forbids to make it."""


@contextmanager
def found_only() -> Iterator[None]:
    """Within this context `run_step` finds steps and makes none: it raises NotMade for one that is not finished."""
    token = _FOUND_ONLY.set(True)
    try:
        yield
    finally:
        _FOUND_ONLY.reset(token)


def run_step(
    name: str,
    config: Any,
    fn: Callable[[Path], dict[str, Any] | None],
    *,
    root: str | Path,
    inputs: Sequence[str | Path] = (),
    source: str | Sequence[str] | None = None,
) -> Path:
    """The directory of a finished step: found, or made by `fn(work_dir)`.

    work_dir is `<directory>.work`. It survives a crash or an exception, so that `fn` can resume from checkpoints in
    it, and is renamed at the end: keep no absolute paths in it. What `fn` returns (JSON) goes into the manifest.
    config: see `canonical`. inputs: keys and hashes, or directories of earlier steps. source: module names for
    `source_hash` (default: the module of `fn`). Of processes that ask for the same step one works, the others wait.

    Raises TypeError or ValueError for a bad name, config or input, RuntimeError when the disk is full, NotMade for a
    step that would have to be made within `found_only`.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ValueError(f"step name {name!r}: use a-z, 0-9, '.', '_' and '-'")
    if isinstance(inputs, str):
        raise TypeError(f"inputs must be a sequence of keys, got the string {inputs!r}")
    default = getattr(fn, "func", fn).__module__  # of a functools.partial: the module of what it calls
    modules = (source,) if isinstance(source, str) else tuple(source or (default,))
    inputs = [load_manifest(i)["key"] if isinstance(i, Path) else i for i in inputs]
    about = {"name": name, "config": canonical(config), "inputs": inputs, "source": source_hash(*modules)}
    about = {"key": step_key(name, config, about["source"], inputs)} | about
    step = Path(root, f"{name}-{about['key'][:12]}")
    if _intact(step):
        return step
    if _FOUND_ONLY.get():
        raise NotMade(f"step {step.name} is not in {root}")
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        # Never a marker file instead of flock: it would outlive a killed process and block the step for ever.
        lock = FileLock(f"{step}.lock", fallback_to_soft=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting for another process to finish {step}", file=sys.stderr)
            lock.acquire()
        try:
            if not _intact(step):
                _build(step, fn, about)
        finally:
            lock.release()
    except Exception as error:
        free = shutil.disk_usage(Path(root).resolve() if Path(root).exists() else "/").free
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error)
        if full or free < 65536:  # some libraries report a full disk without its errno
            raise RuntimeError(
                f"the disk is full in step {step} ({free / 1e6:.1f} MB free): free space and run again, it will resume"
            ) from error
        raise
    return step


def _fingerprint(path: Path) -> str:
    size = path.stat().st_size
    return f"sha256:{file_hash(path)}" if size < HASH_BELOW else f"size:{size}"


def _intact(step: Path) -> bool:
    try:
        files = json.loads((step / "DONE").read_text("utf-8"))["files"]
        return all(_fingerprint(step / name) == mark for name, mark in files.items())
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def _build(step: Path, fn: Callable[[Path], dict[str, Any] | None], about: dict[str, Any]) -> None:
    work = step.with_name(f"{step.name}.work")
    if (step / "DONE").exists():
        print(f"warning: {step} is damaged (files differ from its DONE); building it again", file=sys.stderr)
        damaged = step.with_name(f"{step.name}.damaged")  # moved first: a half-removed step must not look resumable
        shutil.rmtree(damaged, ignore_errors=True)
        step.rename(damaged)
        shutil.rmtree(damaged)
    elif step.exists():  # died between the rename and DONE
        step.rename(work)
    manifest = about | {"git": git_state(), "versions": versions(), "platform": machine(), "resumed": work.exists()}
    work.mkdir(exist_ok=True)
    (work / "DONE.part").unlink(missing_ok=True)  # torn by a crash; it is no output
    started, clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
    result = fn(work)
    if result is not None and not isinstance(result, dict):
        raise TypeError(f"step {about['name']} must return a dict or None, got {type(result).__name__}")
    manifest |= {"started": started, "wall_s": round(time.perf_counter() - clock, 3), "result": result}
    _write_json(work / "manifest.json", manifest)
    files = {}
    for path in sorted(p for p in work.rglob("*") if p.is_file()):
        with path.open("rb") as f:
            os.fsync(f.fileno())
        files[path.relative_to(work).as_posix()] = _fingerprint(path)
    work.rename(step)
    _write_json(step / "DONE", {"files": files})


def _write_json(path: Path, data: Any) -> None:
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as f:
        json.dump(data, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    os.replace(part, path)


def load_manifest(step: str | Path) -> dict[str, Any]:
    """The manifest of a finished step. Raises ValueError when `DONE` is not there."""
    if not Path(step, "DONE").is_file():
        raise ValueError(f"{step} is not the directory of a finished step (no DONE in it)")
    return json.loads(Path(step, "manifest.json").read_text("utf-8"))


def append_jsonl(path: str | Path, row: dict[str, Any]) -> None:
    """Append one line in one write, so that a crash loses at most the last line; a torn one is cut off first."""
    if not isinstance(row, dict):
        raise TypeError(f"append_jsonl takes a dict, got {type(row).__name__}")
    line = json.dumps(row).encode() + b"\n"
    with open(path, "a+b", buffering=0) as f:
        if size := f.seek(0, os.SEEK_END):
            f.seek(-1, os.SEEK_END)
            if f.read(1) != b"\n":
                f.seek(0)
                f.truncate(f.read(size).rfind(b"\n") + 1)
        while line:  # a nearly full disk takes a part of it, and says ENOSPC for the rest
            line = line[f.write(line) :]


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a file that `append_jsonl` wrote. A last line without its newline is torn and left out; any other
    bad line raises ValueError with its number."""
    rows = []
    for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON: {line[:80]!r}") from error
    return rows
