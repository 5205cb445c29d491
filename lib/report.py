"""The results of a profile as a report to read in a browser: python -m lib.report --profile tiny

Writes `report/index.html` below the profile's results: the claims first, then every figure and table in the order of
the notebooks that made them, then where they came from; the executed notebooks become pages beside it. The pages hold
their figures, fetch nothing and run no script.
"""

from __future__ import annotations

import argparse
import base64
import csv
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from markupsafe import Markup
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from lib.config import results_dir
from lib.profiles import PROFILES
from lib.sections import applicable
from lib.tables import write_whole

CLAIM_COLUMNS = (
    "claim",
    "environment",
    "statement",
    "estimate",
    "low",
    "high",
    "verdict",
    "detectable",
    "paper",
    "rule",
)
# No widgets, JavaScript or SVG: what stands in a page can neither run nor fetch anything.
SHOWN_OUTPUTS = ["text/html", "image/png", "image/jpeg", "text/markdown", "text/plain"]
_SAVES = re.compile(r"""save_(figure|table)\(\s*\w+(?:\(\w+\))?,\s*f?["']([^"']+)["']""")


def build_report(profile: str) -> Path:
    """Write the report of a profile and return the path of its `index.html`.

    Raises ValueError for an unknown profile or a file that is not what it should be, FileNotFoundError with the command
    that makes it for a missing one: the claims, the manifest, a notebook's executed copy.
    """
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}; known: {', '.join(PROFILES)}")
    folder, command = results_dir(profile), f"make reproduce PROFILE={profile}"
    claims = _claims(_need(folder / "tables" / "claims.csv", command), command)
    manifest = json.loads(_need(folder / "tables" / "manifest.json", command).read_text("utf-8"))
    if manifest["profile"] != profile:
        raise ValueError(f"the manifest in {folder} is of profile {manifest['profile']!r}: run {command}")
    notebooks = {}
    for name in applicable(profile):
        executed = _need(folder / "executed" / f"{name}.ipynb", f"{command} NOTEBOOKS={name}")
        notebooks[name] = nbformat.read(executed, as_version=4)
    left = {(kind, stem): files for kind in ("figure", "table") for stem, files in _files(folder / f"{kind}s").items()}
    claims_files = _links(left.pop(("table", "claims")))
    sections = [
        {"id": stem, "title": _title(nb), "page": f"{stem}.html", "results": _take(left, _saved(nb))}
        for stem, nb in notebooks.items()
    ]
    if left:
        sections.append({"id": "other", "title": "Other results", "page": "", "results": _take(left, list(left))})
    out = folder / "report"
    for stem in notebooks:
        write_page(folder / "executed" / f"{stem}.ipynb", out / f"{stem}.html")
    page = {"title": f"What multi-turn RL improves: results of the {profile} profile", "sections": sections}
    page |= {"claims": claims, "claims_files": claims_files, "counts": Counter(c["verdict"] for c in claims)}
    write_whole(out / "index.html", _template().render(page | _provenance(manifest)))
    return out / "index.html"


def write_page(executed: Path, out: Path) -> Path:
    """Write an executed notebook as a page of its own and return its path."""
    nb = nbformat.read(executed, as_version=4)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, _template().render(title=_title(nb), name=executed.stem, **_notebook_html(nb)))
    return out


def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    env = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return env.get_template("report.html.j2")


def _need(path: Path, command: str) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run {command} first")
    return path


def _read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(encoding="utf-8", newline="") as f:
        head, *rows = csv.reader(f)
    return head, rows


def _claims(path: Path, command: str) -> list[dict[str, str]]:
    """The rows of claims.csv with `effect`, the estimate and its interval, rounded."""
    head, rows = _read_csv(path)
    if missing := [c for c in CLAIM_COLUMNS if c not in head]:
        raise ValueError(f"{path} has no column {', '.join(missing)}: run {command}")
    claims = [dict(zip(head, row, strict=True)) for row in rows]
    for c in claims:
        numbers = [c[name] for name in ("estimate", "low", "high")]
        c["effect"] = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*map(float, numbers)) if all(numbers) else "no value"
        c["effect"] = c["effect"].replace("-", "−")
        c["detectable"] = cell(c["detectable"])[0]
    return claims


def _title(nb: nbformat.NotebookNode) -> str:
    """The notebook's first heading. Raises ValueError where it has none."""
    text = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    if not (found := re.search(r"^#\s+(.+)$", text, re.MULTILINE)):
        raise ValueError("a notebook without a title: its first Markdown cell must have a line '# title'")
    return found[1].strip()


def _saved(nb: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """(kind, name) of what a notebook saves, in its order; a name with {fields} stands for all that fit it."""
    return [found for c in nb.cells if c.cell_type == "code" for found in _SAVES.findall(c.source)]


def _files(folder: Path) -> dict[str, list[Path]]:
    """The files of a results folder by name without suffix; unfinished ones and the manifest left out."""
    out: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.*")):
        if ".part" not in path.name and path.name != "manifest.json":
            out.setdefault(path.stem, []).append(path)
    return out


def _take(left: dict[tuple[str, str], list[Path]], wanted: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Take the wanted figures and tables out of `left`, each once: images, rows, and links to the files."""
    out = []
    for kind, name in wanted:
        pattern = re.sub(r"\\\{.*?\\\}", ".+", re.escape(name))
        for key in [k for k in left if k[0] == kind and re.fullmatch(pattern, k[1])]:
            files = {p.suffix: p for p in left.pop(key)}
            result: dict[str, Any] = {"name": key[1], "image": "", "head": [], "rows": []}
            if png := files.pop(".png", None):
                result["image"] = base64.b64encode(png.read_bytes()).decode()
            elif ".csv" in files:
                head, rows = _read_csv(files[".csv"])
                result["rows"] = [[cell(text) for text in row] for row in rows]
                result["head"] = [(h, any(row[i][1] for row in result["rows"])) for i, h in enumerate(head)]
            out.append(result | {"files": _links(list(files.values()))})
    return out


def _links(files: list[Path]) -> list[tuple[str, str]]:
    return [(f"../{p.parent.name}/{p.name}", p.suffix.lstrip(".").upper()) for p in files]


def cell(text: str) -> tuple[str, bool]:
    """A CSV cell as it is shown, and whether it is a number: fractions get three digits, all else stays as it is."""
    try:
        value = float(text)
    except ValueError:
        return text, False
    if re.search("[.eE]", text):
        text = f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value + 0.0:.3f}"  # + 0.0: no "-0.000"
    return text.replace("-", "−"), True


def _provenance(manifest: dict[str, Any]) -> dict[str, Any]:
    """What the template says of where the results came from: the manifest, its steps as rows, and one line of it."""
    steps, tokens = [], Counter()
    for name, s in manifest["steps"].items():
        git, n = s["git"], s["result"].get("tokens")
        commit = (git["commit"] or "unknown")[:12] + " with uncommitted changes" * bool(git["dirty"])
        steps.append({"name": name, "started": s["started"], "wall_s": s["wall_s"], "tokens": n, "commit": commit})
        tokens[name.partition("-")[0]] += n or 0
    seeds, commits = ", ".join(map(str, manifest["seeds"])), ", ".join(sorted({s["commit"] for s in steps}))
    about = f"Profile {manifest['profile']} · seeds {seeds} · commit {commits}"
    return {"about": about, "manifest": manifest, "steps": steps, "tokens": tokens}


def _notebook_html(nb: nbformat.NotebookNode) -> dict[str, Markup]:
    """The notebook's cells as HTML without a page around them, and the colours of its code, light and dark."""
    config = Config({"NbConvertBase": {"display_data_priority": SHOWN_OUTPUTS}})
    exporter = HTMLExporter(config=config, template_name="basic", exclude_anchor_links=True)
    light, dark = (HtmlFormatter(style=s).get_style_defs(".highlight") for s in ("default", "github-dark"))
    css = f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n.highlight {{ background: none; }}"
    return {"body": Markup(exporter.from_notebook_node(nb)[0]), "highlight_css": Markup(css)}


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lib.report", description="Write the report of a profile.")
    parser.add_argument("--profile", default="tiny", help=f"one of {', '.join(PROFILES)} (default: %(default)s)")
    try:
        print(build_report(parser.parse_args(argv).profile))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
