"""Compare the tables of a fresh run with the committed ones: python -m lib.verify

Every number of the tables named in TOLERANCES is compared with the table in git (HEAD), row by row. Another number of
seeds changes them by sampling noise, and another kind of processor rounds otherwise: that makes another base policy.
So a number disagrees when it is further away than a stated tolerance and, where the tables have intervals, these do not
overlap. What must not change at all is which rows there are. Verdicts may differ only where one of the two is
inconclusive.
"""

from __future__ import annotations

import io
import subprocess
import sys

import pandas as pd

from lib.config import ROOT, results_dir

# table: (columns that name a row, {column: absolute tolerance})
TOLERANCES = {
    "claims": (["claim", "environment"], {}),
    "base_policies": (["environment"], {"solved": 0.05, "failed": 0.05}),
    "breadth_leads": (["environment", "policy", "over", "K", "T"], {"lead": 0.06}),
    "depth_leads": (["environment", "policy", "over", "K", "T"], {"lead": 0.06}),
    "budgetmix_leads": (["environment", "policy", "over", "K", "T"], {"lead": 0.05}),
    "training_dynamics": (["environment", "arm", "measure"], {"estimate": 0.12}),
}
CLAIM_TOLERANCE = 1.0  # an estimate must lie within so many widths of the committed interval


def overlap(a: pd.Series, b: pd.Series) -> bool:
    """Whether the intervals of two rows have a point in common; False for rows without intervals."""
    return "low" in a and bool(a.low <= b.high and b.low <= a.high)


def compare(name: str, fresh: pd.DataFrame, committed: pd.DataFrame) -> list[str]:
    """Differences beyond the tolerances, in words; empty when the tables agree."""
    keys, columns = TOLERANCES[name]
    a, b = fresh.set_index(keys), committed.set_index(keys)
    if set(a.index) != set(b.index):
        odd = sorted(map(str, set(a.index) ^ set(b.index)))
        return [f"{name}: rows differ: {', '.join(odd[:5])}"]
    problems = []
    for key, row in b.iterrows():
        new = a.loc[key]
        for column, limit in columns.items():
            if abs(new[column] - row[column]) > limit and not overlap(new, row):
                problems.append(f"{name} {key}: {column} {new[column]:.3f}, committed {row[column]:.3f} (±{limit})")
        if name == "claims":
            slack = CLAIM_TOLERANCE * (row.high - row.low)
            if not row.low - slack <= new.estimate <= row.high + slack and not overlap(new, row):
                problems.append(f"claims {key}: {new.estimate:.3f}, committed {row.low:.3f} to {row.high:.3f}")
            if {new.verdict, row.verdict} == {"supported", "opposite"}:
                problems.append(f"claims {key}: {new.verdict}, committed {row.verdict}")
    return problems


def committed_table(name: str) -> pd.DataFrame:
    """A table of the default profile as it is in git. Raises FileNotFoundError where it is not."""
    path = f"HEAD:results/tables/{name}.csv"
    found = subprocess.run(["git", "show", path], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        raise FileNotFoundError(f"{path} is not in git: {found.stderr.strip()}")
    return pd.read_csv(io.StringIO(found.stdout))


def main() -> int:
    """The command line; 1 when a table differs beyond its tolerance."""
    problems = []
    for name in TOLERANCES:
        path = results_dir("tiny") / "tables" / f"{name}.csv"
        try:
            problems += compare(name, pd.read_csv(path), committed_table(name))
        except FileNotFoundError as error:
            problems.append(f"{name}: {error}; run make reproduce first")
    print("\n".join(problems) if problems else f"{len(TOLERANCES)} tables agree with the committed ones")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
