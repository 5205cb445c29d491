"""Terminal-Bench tasks in Harbor's format: folders with task.toml, instruction.md, environment/, tests/, solution/.

A task's data: instruction; workdir; files, tests, solution ({path from /: [mode, text] or [mode, base64, "base64"]}, a
path that ends in "/" is a folder); setup (shell commands run once, from the Dockerfile's RUN); image, network,
memory_mb, cpus, verify_s (from task.toml); needs (why it cannot run in bubblewrap; empty where it can).
`python -m lib.envs.terminal_tasks FOLDER` lists a folder's tasks with what each needs.
"""

from __future__ import annotations

import base64
import io
import posixpath
import re
import shlex
import shutil
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

from lib.envs.base import Task
from lib.envs.terminal_sandbox import EPOCH, ROOT, TOPS

LOCAL = ROOT / "data" / "terminal"
# the main branch as of 2026-04-24, 89 tasks
DATASET, REVISION = "harborframework/terminal-bench-2.0", "f2e8c75e23add71613117eecc9498f53bcd7e04e"
_FETCHES = re.compile(
    r"\b(curl|wget|apt|apt-get|apk|dnf|yum|pip3?|pipx|uvx?|conda|npm|npx|yarn|cargo|gem|cpanm?|Rscript|git clone)\b"
)
_BASES = re.compile(r"(debian|ubuntu|bash|python)(:[\w.-]+)?")
_IGNORED = ("CMD", "EXPOSE", "LABEL", "MAINTAINER", "SHELL")


def archive(files: dict[str, list]) -> bytes:
    """A tar archive of `files`, folders included, all dated `EPOCH`."""
    out, folders = io.BytesIO(), set()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:

        def add(name: str, mode: int, content: bytes | None) -> None:
            info = tarfile.TarInfo(name)
            info.mode, info.mtime = mode, EPOCH
            info.type, info.size = (tarfile.DIRTYPE, 0) if content is None else (tarfile.REGTYPE, len(content))
            tar.addfile(info, io.BytesIO(content or b""))

        for path, entry in sorted(files.items()):
            name = path.rstrip("/")
            for parent in [str(p) for p in reversed(Path(name).parents)][1:]:
                if parent not in folders and f"{parent}/" not in files:
                    add(parent, 0o755, None)
                folders.add(parent)
            mode, text, *kind = entry
            content = base64.b64decode(text) if kind else text.encode("utf-8", "surrogateescape")
            add(name, mode, None if path.endswith("/") else content)
    return out.getvalue()


def _entry(path: Path) -> list:
    mode, content = 0o755 if path.stat().st_mode & 0o100 else 0o644, path.read_bytes()
    try:
        if b"\0" not in content:
            return [mode, content.decode()]
    except UnicodeDecodeError:
        pass
    return [mode, base64.b64encode(content).decode(), "base64"]


def _folder(folder: Path, top: str) -> dict[str, list]:
    """A folder's files under the path `top`. Raises ValueError for a link that leads out of it."""
    out = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        real = path.resolve()
        if not real.is_relative_to(folder.resolve()) and "blobs" not in real.parts:  # the hub's cache links to blobs
            raise ValueError(f"{path} leads out of {folder}")
        out[f"{top.strip('/')}/{path.relative_to(folder)}"] = _entry(path)
    return out


def read_dockerfile(text: str, context: Path) -> tuple[str, dict[str, list], list[str], list[str]]:
    """(workdir, files, setup, needs): what bubblewrap can follow of a Dockerfile, and what it cannot.

    It follows FROM a plain Debian, Ubuntu or Python image (the host stands in for it), WORKDIR and COPY under /app,
    /root or /tmp, and RUN without packages or network.
    """
    workdir, files, setup, needs, stages = "/", {}, [], [], 0
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in filter(None, (part.strip() for part in re.sub(r"\\\s*\n", " ", lines).splitlines())):
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        if word == "FROM":
            stages += 1
            if not _BASES.fullmatch(rest) or stages > 1:
                needs.append(f"the image {rest}")
        elif word == "WORKDIR":
            workdir = rest if rest.startswith("/") else f"{workdir.rstrip('/')}/{rest}"
        elif word == "COPY" and not rest.startswith("-"):
            *sources, target = shlex.split(rest)
            target = target if target.startswith("/") else f"{workdir.rstrip('/')}/{target}"
            target = posixpath.normpath(target) + "/" * target.endswith(("/", "."))
            for source in (context / s for s in sources):
                if not source.resolve().is_relative_to(context.resolve()) or not source.exists():
                    needs.append(f"COPY of {source.name}, which is not there")
                elif source.is_dir():
                    files |= _folder(source, target)
                else:
                    name = f"{target}{source.name}" if target.endswith("/") else target
                    files[name.strip("/")] = _entry(source)
        elif word == "RUN" and not rest.startswith(("-", "[")) and not _FETCHES.search(rest):
            setup.append(f"cd {shlex.quote(workdir)}; {rest}")
        elif word not in _IGNORED:
            needs.append(f"{word} {rest[:40]}")
    if outside := sorted({p for p in [workdir.strip("/"), *files] if p.split("/")[0] not in TOPS}):
        needs.append(f"files at /{outside[0][:60]}")
    return workdir, files, setup, needs


def _megabytes(section: dict[str, Any]) -> int:
    """memory_mb, or the older `memory = "2G"`."""
    if "memory_mb" in section:
        return int(section["memory_mb"])
    match = re.fullmatch(r"(\d+)([MG])i?B?", str(section.get("memory", "2G")))
    if match is None:
        raise ValueError(f"task.toml: memory={section['memory']!r}: must be as '512M' or '2G'")
    return int(match[1]) * (1024 if match[2] == "G" else 1)


def read_task(folder: str | Path) -> Task:
    """One task folder; its id is the folder's name. Raises ValueError where a part is missing or cannot be read."""
    folder = Path(folder)
    for part in ("task.toml", "instruction.md", "tests/test.sh"):
        if not (folder / part).is_file():
            raise ValueError(f"{folder} is not a task in Harbor's format: {part} is missing")
    try:
        toml = tomllib.loads((folder / "task.toml").read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{folder / 'task.toml'}: {error}") from None
    section, tests = toml.get("environment", {}), _folder(folder / "tests", "tests")
    dockerfile = folder / "environment" / "Dockerfile"
    workdir, files, setup, needs = "/app", {}, [], ["an image: there is no environment/Dockerfile"]
    if dockerfile.is_file():
        workdir, files, setup, needs = read_dockerfile(dockerfile.read_text("utf-8"), dockerfile.parent)
    if (dockerfile.parent / "docker-compose.yaml").exists():
        needs.append("several services (docker-compose.yaml)")
    if section.get("gpus", 0):
        needs.append("a GPU")
    test = tests["tests/test.sh"][1]
    if found := _FETCHES.search(test) or re.search(r"\bpytest\b", test):
        needs.append(f"{found[0]} for its tests")
    needs += [f"the command {c}" for c in toml.get("metadata", {}).get("requires", []) if not shutil.which(c)]
    instruction = (folder / "instruction.md").read_text("utf-8").strip()
    solution = _folder(folder / "solution", "solution") if (folder / "solution").is_dir() else {}
    network = section.get("network_mode", "public" if section.get("allow_internet", True) else "no-network")
    data = dict(
        instruction=instruction, workdir=workdir, files={} if needs else files, setup=setup, tests=tests,
        solution=solution, image=section.get("docker_image", ""), network=network != "no-network",
        memory_mb=_megabytes(section), cpus=section.get("cpus", 1), needs=needs,
        verify_s=float(toml.get("verifier", {}).get("timeout_sec", 600.0)),
    )  # fmt: skip
    return Task(folder.name, data)


def write_task(task: Task, folder: str | Path) -> None:
    """Write a task that bubblewrap can run as a folder in Harbor's format; `read_task` gives the same task back."""
    folder, data = Path(folder), task.data
    groups = {"tests": data["tests"], "solution": data["solution"]}
    groups["environment"] = {f"environment/files/{path}": entry for path, entry in data["files"].items()}
    for files in groups.values():
        for path, (mode, text, *kind) in files.items():
            target = folder / path
            if path.endswith("/"):
                raise ValueError(f"task {task.id}: an empty folder ({path}) cannot be copied: make it in setup")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(base64.b64decode(text) if kind else text.encode())
            target.chmod(mode)
    lines = ["FROM debian:bookworm", f"WORKDIR {data['workdir']}"]
    lines += [f"COPY files/{top} /{top}" for top in sorted({p.split("/")[0] for p in data["files"]})]
    lines += [f"RUN {command.partition('; ')[2]}" for command in data["setup"]]
    (folder / "environment").mkdir(exist_ok=True)
    (folder / "environment" / "Dockerfile").write_text("\n".join(lines) + "\n")
    (folder / "instruction.md").write_text(data["instruction"] + "\n")
    (folder / "task.toml").write_text(
        f'version = "1.0"\n\n[verifier]\ntimeout_sec = {data["verify_s"]}\n\n[environment]\ncpus = {data["cpus"]}\n'
        f"memory_mb = {data['memory_mb']}\nallow_internet = {str(data['network']).lower()}\n"
    )


def read_tasks(folder: str | Path) -> list[Task]:
    """All tasks at or below a folder, sorted by name. Raises ValueError where there is none."""
    found = sorted({p.parent.name: p.parent for p in Path(folder).glob("**/task.toml")}.items())
    if not found:
        raise ValueError(f"no task.toml below {folder}: must be a folder of tasks in Harbor's format")
    return [read_task(path) for _, path in found]


def official_folder() -> Path:
    """Terminal-Bench 2.0 from the Hugging Face hub at a pinned revision. Raises ConnectionError without a network."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(DATASET, repo_type="dataset", revision=REVISION))
    except Exception as error:
        raise ConnectionError(
            f"{DATASET} cannot be fetched ({type(error).__name__}): give folder= with a copy of Terminal-Bench 2.0"
        ) from error


def main(argv: list[str]) -> int:
    tasks = read_tasks(argv[0]) if argv else read_tasks(LOCAL)
    for task in tasks:
        print(f"{task.id}: {'needs ' + '; '.join(task.data['needs']) if task.data['needs'] else 'runs under bwrap'}")
    print(f"{sum(not t.data['needs'] for t in tasks)} of {len(tasks)} tasks run under bwrap")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
