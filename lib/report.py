"""The results of a profile as a report to read in a browser: python -m lib.report --profile tiny

Writes `report/index.html` below the profile's results: the claims first, then every figure and table in the order of the
notebooks that made them, with where they came from, and the executed notebooks as pages beside it. The pages hold their
figures, fetch nothing and run no script.
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

from lib.config import PROFILES, ROOT, results_dir
from lib.tables import write_whole

NOTEBOOKS = ROOT / "notebooks"
CLAIM_COLUMNS = {
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
}
# No widgets, JavaScript or SVG: what stands in a page can neither run nor fetch anything.
SHOWN_OUTPUTS = ["text/html", "image/png", "image/jpeg", "text/markdown", "text/plain"]
_SAVES = re.compile(r"""save_(figure|table)\(\s*\w+,\s*f?["']([^"']+)["']""")


def build_report(profile: str) -> Path:
    """Write the report of a profile and return the path of its `index.html`.

    Raises ValueError for an unknown profile or a file that is not what it should be, FileNotFoundError with the command
    that makes it for a missing one: the claims, the manifest, a notebook's executed copy.
    """
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}; known: {', '.join(PROFILES)}")
    folder = results_dir(profile)
    claims, manifest = _claims(folder, profile), _manifest(folder, profile)
    notebooks = {source.stem: _executed(folder, profile, source) for source in sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))}
    left = {
        (kind, stem): files for kind in ("figure", "table") for stem, files in _by_stem(folder / f"{kind}s").items()
    }
    claims_files = _links(left.pop(("table", "claims")))
    sections = [
        {"id": stem, "title": _title(nb, stem), "page": f"{stem}.html", "results": _take(left, _saved(nb))}
        for stem, nb in notebooks.items()
    ]
    if left:
        sections.append({"id": "other", "title": "Other results", "page": "", "results": _take(left, list(left))})
    about = {"about": _about(manifest), "provenance": _provenance(manifest), "steps": _steps(manifest)}
    counts = Counter(c["verdict"] for c in claims)
    page = {"title": f"What multi-turn RL improves: results of the {profile} profile", "sections": sections} | about
    page |= {"counts": ", ".join(f"{n} {v}" for v, n in counts.most_common()), "claims_files": claims_files}
    out = folder / "report"
    out.mkdir(parents=True, exist_ok=True)
    template = _template()
    for stem, nb in notebooks.items():
        write_whole(out / f"{stem}.html", template.render(title=_title(nb, stem), name=stem, **_notebook_html(nb)))
    write_whole(out / "index.html", template.render(page, claims=claims))
    return out / "index.html"


def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    env = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    env.globals["links"] = lambda files: Markup(" · ").join(Markup('<a href="{}">{}</a>').format(*f) for f in files)
    return env.get_template("report.html.j2")


def _need(path: Path, command: str) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run {command} first")
    return path


def _read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(encoding="utf-8", newline="") as f:
        head, *rows = csv.reader(f)
    return head, rows


def _claims(folder: Path, profile: str) -> list[dict[str, str]]:
    """The rows of claims.csv, numbers rounded, with `effect`: the estimate and its interval."""
    path = _need(folder / "tables" / "claims.csv", f"make reproduce PROFILE={profile}")
    head, rows = _read_csv(path)
    if missing := CLAIM_COLUMNS - set(head):
        raise ValueError(f"{path} has no column {', '.join(sorted(missing))}: run make reproduce PROFILE={profile}")
    out = []
    for row in rows:
        c = dict(zip(head, row, strict=True))
        numbers = (float(c[k]) for k in ("estimate", "low", "high"))
        c["effect"] = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*numbers).replace("-", "−")
        out.append(c | {"detectable": cell(c["detectable"])[0]})
    return out


def _manifest(folder: Path, profile: str) -> dict[str, Any]:
    path = _need(folder / "tables" / "manifest.json", f"make reproduce PROFILE={profile}")
    manifest = json.loads(path.read_text("utf-8"))
    if manifest["profile"] != profile:
        raise ValueError(f"{path} is of profile {manifest['profile']!r}: run make reproduce PROFILE={profile}")
    return manifest


def _executed(folder: Path, profile: str, source: Path) -> nbformat.NotebookNode:
    path = _need(folder / "executed" / source.name, f"make reproduce PROFILE={profile} NOTEBOOKS={source.stem}")
    return nbformat.read(path, as_version=4)


def _title(nb: nbformat.NotebookNode, stem: str) -> str:
    """The notebook's first heading, else its name."""
    text = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    found = re.search(r"^#\s+(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else stem


def _saved(nb: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """(kind, name) of what a notebook saves, in its order; a name with {fields} stands for all that fit it."""
    return [found for c in nb.cells if c.cell_type == "code" for found in _SAVES.findall(c.source)]


def _by_stem(folder: Path) -> dict[str, list[Path]]:
    """The files of a results folder by name without suffix, unfinished ones and the manifest left out."""
    out: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.*")):
        if ".part" not in path.name and path.name != "manifest.json":
            out.setdefault(path.stem, []).append(path)
    return out


def _take(left: dict[tuple[str, str], list[Path]], wanted: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Take the wanted figures and tables out of `left`, each once."""
    out = []
    for kind, name in wanted:
        pattern = re.sub(r"\\\{.*?\\\}", ".+", re.escape(name))
        for key in [k for k in left if k[0] == kind and re.fullmatch(pattern, k[1])]:
            out.append(_result(key[1], left.pop(key)))
    return out


def _result(name: str, files: list[Path]) -> dict[str, Any]:
    """A figure with its image, or a table with its rows; `files`: links to what is not in the page itself."""
    by_suffix = {p.suffix: p for p in files}
    out: dict[str, Any] = {"name": name, "image": "", "head": [], "rows": []}
    if png := by_suffix.pop(".png", None):
        out["image"] = base64.b64encode(png.read_bytes()).decode()
    elif ".csv" in by_suffix:
        out["head"], rows = _read_csv(by_suffix[".csv"])
        out["rows"] = [[cell(text) for text in row] for row in rows]
    return out | {"files": _links(list(by_suffix.values()))}


def _links(files: list[Path]) -> list[tuple[str, str]]:
    return [(f"../{p.parent.name}/{p.name}", p.suffix.lstrip(".").upper()) for p in files]


def cell(text: str) -> tuple[str, bool]:
    """A CSV cell as it is shown, and whether it is a number: fractions have three digits, all else is left as it is."""
    try:
        value = float(text)
    except ValueError:
        return text, False
    if not re.search("[.eE]", text):
        return text, True
    short = f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value + 0.0:.3f}"
    return short.replace("-", "−"), True


def _commit(git: dict[str, Any]) -> str:
    if git["commit"] is None:
        return "unknown commit"
    return git["commit"][:12] + " with uncommitted changes" * bool(git["dirty"])


def _about(manifest: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, manifest["seeds"]))
    commits = sorted({_commit(s["git"]) for s in manifest["steps"].values()})
    return f"Profile {manifest['profile']} · seeds {seeds} · commit {', '.join(commits)}"


def _provenance(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    steps = manifest["steps"].items()
    tokens = Counter({"base": 0, "train": 0, "episodes": 0})
    for name, s in steps:
        tokens[name.partition("-")[0]] += s["result"].get("tokens", 0)
    commits = Counter(_commit(s["git"]) for _, s in steps)
    return [
        ("Profile", manifest["profile"]),
        ("Seeds", ", ".join(map(str, manifest["seeds"]))),
        ("Commit", ", ".join(f"{c} ({n} steps)" for c, n in commits.items())),
        ("Wall time", f"{manifest['wall_s']:,.0f} s for the last run, {sum(s['wall_s'] for _, s in steps):,.0f} s in steps"),
        ("Tokens", f"{tokens['base']:,} base policy, {tokens['train']:,} RL training, {tokens['episodes']:,} evaluation"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in manifest["versions"].items())),
        ("Machine", ", ".join(f"{k}: {v}" for k, v in manifest["platform"].items())),
    ]  # fmt: skip


def _steps(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    shown = [s | {"name": n, "commit": _commit(s["git"])} for n, s in manifest["steps"].items()]
    return [s | {"tokens": f"{s['result']['tokens']:,}" if "tokens" in s["result"] else ""} for s in shown]


def _notebook_html(nb: nbformat.NotebookNode) -> dict[str, Markup]:
    """The notebook's cells as HTML without a page around them, and the colours of its code, light and dark."""
    exporter = HTMLExporter(template_name="basic", exclude_anchor_links=True)
    exporter.config.NbConvertBase.display_data_priority = SHOWN_OUTPUTS
    body = HTMLExporter(config=exporter.config, template_name="basic", exclude_anchor_links=True)
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    css = f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n.highlight {{ background: none; }}"
    return {"body": Markup(body.from_notebook_node(nb)[0]), "highlight_css": Markup(css)}


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lib.report", description="Write the report of a profile.")
    parser.add_argument("--profile", default="tiny", help=f"one of {', '.join(PROFILES)} (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        print(build_report(args.profile))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
