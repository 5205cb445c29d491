"""The benchmark runs and gives the right columns; in its update row, loss and gradients must equal stock TRL's."""

import csv
import math

from lib.bench import COLUMNS, main

ROWS = (
    "rollouts",
    "rollouts",
    "update: ",
    "update, of the matmul peak",
    "update, of what its shapes allow",
    "training step, full budget",
    "training step, BudgetMix",
    "sandbox",
    "sandbox",
    "SQL",
    "attention",
    "analysis",
    "start",
)


def test_quick_rows_have_the_columns(tmp_path):
    main(["--quick", "--out", str(tmp_path / "tables" / "bench.csv")])
    with (tmp_path / "tables" / "bench.csv").open(newline="") as f:
        reader = csv.DictReader(f)
        rows = list(reader)
    assert tuple(reader.fieldnames) == COLUMNS
    assert len(rows) == len(ROWS) and all(r["name"].startswith(n) for r, n in zip(rows, ROWS, strict=True))
    for r in rows:
        assert r["unit"].endswith("/s") and r["note"]
        ours, anchor, ratio = (float(r[k]) for k in ("ours", "anchor", "ratio"))
        assert ours > 0 and anchor > 0 and math.isfinite(ratio)
        assert abs(ratio - ours / anchor) <= 0.01 + 0.002 * ratio  # rounded in the table
