"""Put the generated parts into README.md: python -m lib.readme [--check]

The claims table comes from results/tables/claims.csv, the map of claims to notebooks from lib/sections.py, the
results of a pretrained model from its own tables. Nothing between the markers is typed by hand.
"""

from __future__ import annotations

import argparse
import re
import sys

import pandas as pd

from lib.config import ROOT, results_dir
from lib.sections import SECTIONS
from lib.tables import write_whole

README = ROOT / "README.md"
PRETRAINED = "qwen2.5-0.5b"


def claims_markdown(claims: pd.DataFrame) -> str:
    """The claims as a Markdown table, most important columns only."""
    rows = []
    for c in claims.itertuples():
        effect = f"{c.estimate:+.3f} [{c.low:+.3f}, {c.high:+.3f}]"
        mark = {"within": f"±{c.boundary:g}"}.get(c.side, f"{c.side} {c.boundary:g}")
        rows.append(
            [c.claim, c.environment, c.statement, effect, mark, f"**{c.verdict}**", f"{c.detectable:.3f}", c.paper]
        )
    head = ["claim", "environment", "statement", "effect [interval]", "holds if", "verdict", "detectable", "the paper"]
    table = pd.DataFrame(rows, columns=head).to_markdown(index=False, disable_numparse=True)
    tasks = " to ".join(map(str, sorted({claims.n_tasks.min(), claims.n_tasks.max()})))
    return f"{table}\n\nProfile `{claims.profile[0]}`, {claims.n_seeds[0]} seeds, {tasks} test tasks an environment."


def pretrained_markdown(profile: str = PRETRAINED) -> str:
    """The committed run of a pretrained model: how its base policy ended its episodes, and the claims."""
    tables = results_dir(profile) / "tables"
    base = pd.read_csv(tables / "base_policies.csv").to_markdown(index=False, floatfmt=".3g")
    return f"{base}\n\n{claims_markdown(pd.read_csv(tables / 'claims.csv'))}"


def sections_markdown() -> str:
    """Which notebook answers which claim, and the command that runs it alone."""
    rows = [
        [", ".join(s.claims), s.paper, f"[{name}](notebooks/{name}.ipynb)", f"`make reproduce NOTEBOOKS={name}`"]
        for name, s in SECTIONS.items()
    ]
    return pd.DataFrame(rows, columns=["claim", "section", "notebook", "command"]).to_markdown(index=False)


def rendered(text: str) -> str:
    """README's text with its generated parts made anew. Raises ValueError where a marker is missing."""
    claims = pd.read_csv(results_dir("tiny") / "tables" / "claims.csv")
    parts = {"claims": claims_markdown(claims), "sections": sections_markdown(), "pretrained": pretrained_markdown()}
    for name, body in parts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"README.md has no markers <!-- {name} --> and <!-- /{name} -->")
        text = pattern.sub(lambda m, body=body: m[1] + body + "\n" + m[2], text)
    return text


def main(argv: list[str] | None = None) -> int:
    """The command line; with --check 1 when README.md is not up to date."""
    parser = argparse.ArgumentParser(prog="python -m lib.readme")
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when it is out of date")
    args = parser.parse_args(argv)
    old = README.read_text("utf-8")
    new = rendered(old)
    if args.check:
        return int(old != new)
    write_whole(README, new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
