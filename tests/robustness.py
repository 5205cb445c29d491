"""What a run survives: make robustness CHECKS="kills pair damage disk offline" (the default: all, half an hour).

Each check runs `python -m lib.reproduce --profile smoke` in a copy of this checkout, on FrozenLake and
InterCode-SQL only; an undisturbed run is the measure.
kills     SIGKILL of the whole process group at 20 random moments, then a last run
pair      two runs at once in one checkout
damage    a bit of every fourth file of the step cache is flipped, then a run
disk      a full disk at three moments, then room again
offline   a run without a network
In every case all tables and all stored numbers (parquet) must be those of the undisturbed run; so the checks are at the
same time checks that the same seed gives the same numbers twice. `disk` and `offline` need bubblewrap.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib.manifest import file_hash
from lib.sandbox.launch import bwrap_binary

ROOT = Path(__file__).resolve().parents[1]
RUN = [sys.executable, "-m", "lib.reproduce", "--profile", "smoke"]
ALL = "for x in _TINY)"
KILLS, KILL_AFTER_S = 20, (2.0, 45.0)
DISK = 1 << 29  # bytes of the disk that fills up


def checkout(folder: Path) -> Path:
    """A copy of the tracked files and of the fetched data, without results."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    shutil.rmtree(folder / "results")
    shutil.copytree(ROOT / "data", folder / "data", dirs_exist_ok=True)
    profiles = (folder / "lib" / "profiles.py").read_text()
    assert ALL in profiles
    (folder / "lib" / "profiles.py").write_text(profiles.replace(ALL, "for x in (_tiny_frozenlake(), _tiny_sql()))"))
    return folder


def start(folder: Path, prefix: tuple[str, ...] = ()) -> subprocess.Popen:
    log = (folder / "log.txt").open("a")
    env = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.Popen([*prefix, *RUN], cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)


def run(folder: Path, prefix: tuple[str, ...] = ()) -> None:
    if start(folder, prefix).wait():
        raise SystemExit(f"a run that must succeed failed:\n{tail(folder)}")


def tail(folder: Path) -> str:
    return "\n".join((folder / "log.txt").read_text().splitlines()[-5:])


def numbers(folder: Path) -> dict[str, str]:
    """Checksums of all tables and of all stored episodes and analyses. The manifest holds times and is left out."""
    results = folder / "results"
    steps = [p for p in results.glob("runs/*/**/*.parquet") if ".work" not in str(p)]
    return {str(p.relative_to(results)): file_hash(p) for p in [*results.glob("smoke/tables/*.csv"), *steps]}


def same(folder: Path, expected: dict[str, str], name: str) -> None:
    found = numbers(folder)
    other = sorted(k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k))
    print(f"{name}: {len(expected)} files, {len(other)} differ {other[:5]}", flush=True)
    if other or not expected:
        raise SystemExit(1)


def stage(folder: Path) -> str:
    """What was under way, as the unfinished steps and the log tell."""
    steps = [p.name.rsplit("-", 1)[0] for p in folder.glob("results/runs/*.work")]
    return ", ".join(steps) or f"between steps, after: {tail(folder).splitlines()[-1:]}"


def kills(folder: Path, expected: dict[str, str]) -> None:
    rng, done = random.Random(0), 0
    while done < KILLS:
        process, wait = start(folder), rng.uniform(*KILL_AFTER_S)
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            done += 1
            print(f"  kill {done} after {wait:.0f} s in {stage(folder)}", flush=True)
            continue
        if process.returncode:
            raise SystemExit(f"a run after a kill failed:\n{tail(folder)}")
        same(folder, expected, "kills, a run that came to its end")
        shutil.rmtree(folder / "results")
    run(folder)
    same(folder, expected, "kills")
    time.sleep(2)
    left = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True).stdout.split()
    print(f"kills: {len(left)} processes left", flush=True)
    if left:
        raise SystemExit(1)


def pair(folder: Path, expected: dict[str, str]) -> None:
    both = [start(folder), start(folder)]
    if any([p.wait() for p in both]):
        raise SystemExit(f"one of two runs failed:\n{tail(folder)}")
    same(folder, expected, "pair")


def damage(folder: Path, expected: dict[str, str]) -> None:
    run(folder)
    files = [p for p in sorted(folder.glob("results/runs/*/**/*")) if p.is_file() and p.stat().st_size][::4]
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    run(folder)
    rebuilt = (folder / "log.txt").read_text().count("is damaged")
    print(f"damage: {len(files)} files damaged, {rebuilt} steps built again", flush=True)
    same(folder, expected, "damage")


def disk(folder: Path, expected: dict[str, str]) -> None:
    """results/ is a file system in memory that is filled up while a run is under way."""
    (folder / "results").mkdir()
    script = f"""
import subprocess, sys, shutil, os
for wait in (15, 30, 45):
    run = subprocess.Popen({RUN!r}, stderr=subprocess.PIPE, text=True)
    try: run.communicate(timeout=wait)
    except subprocess.TimeoutExpired: pass
    with open("results/ballast", "wb") as f:
        try:
            while True: f.write(bytes(1 << 16))
        except OSError: pass
    said = run.communicate()[1]
    print("  full after", wait, "s:", run.returncode, said.strip().splitlines()[-1][:160], flush=True)
    assert run.returncode == 1 and "the disk is full" in said, said[-2000:]
    os.unlink("results/ballast")
run = subprocess.run({RUN!r}, stderr=subprocess.PIPE, text=True)
assert run.returncode == 0, run.stderr[-2000:]
shutil.copytree("results", "kept")
"""
    inside = (bwrap_binary(), "--dev-bind", "/", "/", "--size", str(DISK), "--tmpfs", str(folder / "results"))
    env = os.environ | {"PYTHONPATH": str(folder)}
    subprocess.run([*inside, sys.executable, "-c", script], cwd=folder, env=env, check=True)
    (folder / "results").rmdir()
    (folder / "kept").rename(folder / "results")
    same(folder, expected, "disk")


def offline(folder: Path, expected: dict[str, str]) -> None:
    run(folder, (bwrap_binary(), "--unshare-net", "--dev-bind", "/", "/"))
    same(folder, expected, "offline")


CHECKS = {f.__name__: f for f in (kills, pair, damage, disk, offline)}


def main(names: list[str]) -> None:
    if unknown := set(names) - CHECKS.keys():
        raise SystemExit(f"unknown check {unknown.pop()!r}; known: {', '.join(CHECKS)}")
    with tempfile.TemporaryDirectory(prefix="robustness-") as top:
        reference, begun = checkout(Path(top, "reference")), time.monotonic()
        run(reference)
        expected = numbers(reference)
        print(f"undisturbed: {time.monotonic() - begun:.0f} s, {len(expected)} files", flush=True)
        for name in names or CHECKS:
            CHECKS[name](checkout(Path(top, name)), expected)


if __name__ == "__main__":
    main(sys.argv[1:])
