"""Exit 0 when this interpreter has every package of a lock file at its pinned version. Needs no package itself."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def missing(lock: Path) -> list[str]:
    """The pins of `lock` (lines `name==version`) that are not installed as they are, build tags aside."""
    out = []
    for line in lock.read_text("utf-8").splitlines():
        name, _, pin = line.partition(";")[0].strip().partition("==")
        if not pin:
            continue
        try:
            found = version(name).partition("+")[0]
        except PackageNotFoundError:
            found = "absent"
        if found != pin.partition("+")[0]:
            out.append(f"{name}: {found}, needs {pin}")
    return out


if __name__ == "__main__":
    if sys.version_info[:2] != (3, 11):
        sys.exit(f"Python {sys.version.split()[0]} found, 3.11 is needed")
    problems = missing(Path(sys.argv[1]))
    sys.exit("\n".join(problems) if problems else 0)
