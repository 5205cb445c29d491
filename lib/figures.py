"""The figures, in one visual language: policy = colour, environment = panel, seeds = thin lines, interval = band,
structural bound = dashed line. Colours are Okabe and Ito's, which colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.config import ARMS, results_dir
from lib.tables import write_whole

BOUND = "Structural bound"
_AXES = {"K": "K (samples)", "T": "T (turns)"}
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7A5195", "#555555")
COLOURS = {"Base": "#000000", BOUND: "#888888"} | {
    arm.label: colour for arm, colour in zip(ARMS.values(), _OKABE_ITO, strict=False)
}


def use_style() -> None:
    """Set the style once at the top of a notebook: paper width, readable labels, no surprises in PDF."""
    sns.set_theme(context="paper", style="whitegrid", font_scale=1.15)
    matplotlib.rcParams.update({"figure.dpi": 110, "savefig.dpi": 200, "axes.spines.top": False, "pdf.fonttype": 42,
                                "axes.spines.right": False, "legend.frameon": False,
                                "figure.constrained_layout.use": True, "svg.hashsalt": "0"})  # fmt: skip


def panels(environments: Sequence[str], width: float = 3.1, height: float = 2.5) -> tuple[Figure, dict[str, Axes]]:
    """A figure with one panel an environment, at most three in a row, and the axes by the names given."""
    n = len(environments)
    columns = 2 if n == 4 else min(3, n)
    rows = -(-n // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(max(4.5, columns * width), rows * height + 0.5), squeeze=False)
    for ax in axes.flat[n:]:
        ax.remove()
    return fig, dict(zip(environments, axes.flat, strict=False))


def shared_legend(fig: Figure) -> None:
    """One legend for all panels below them."""
    known = {label: h for ax in fig.axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    fig.legend(known.values(), known, loc="outside lower center", ncols=min(4, len(known)), fontsize=8)


def curves(data: pd.DataFrame, axis: str, ax: Axes, bound: pd.DataFrame | None = None, bands: bool = True) -> None:
    """Draw Pass@(K,T) over `axis` ("K" or "T") as `lib.curves.pass_curves` returns it, and the structural bound.

    bands: intervals over tasks; leave them out where many curves lie close together."""
    for policy, group in data.groupby("policy", sort=False):
        colour = COLOURS[policy]
        for seed, line in group.groupby("seed"):
            if seed != "mean":
                ax.plot(line[axis], line["pass"], color=colour, lw=0.6, alpha=0.5)
        mean = group[group.seed == "mean"]
        ax.plot(mean[axis], mean["pass"], color=colour, lw=2, marker="o", ms=3.5, label=policy)
        if bands:
            ax.fill_between(mean[axis], mean.low, mean.high, color=colour, alpha=0.15, lw=0)
    if bound is not None:
        ax.plot(bound[axis], bound["pass"], color=COLOURS[BOUND], lw=1.5, ls="--", label=BOUND)
    points = sorted(data[axis].unique())
    ax.set_xticks(points if len(points) <= 8 else range(0, max(points) + 1, max(1, max(points) // 5)))
    ax.set(xlabel=_AXES[axis], ylabel=f"Pass@{axis}", ylim=(0, 1.02))


def leads(table: pd.DataFrame, ax: Axes, axis: str = "T", name: str = "{policy} − {over}") -> None:
    """Draw leads with their intervals over seeds as `lib.curves.lead_table` returns them; `name` is their legend's."""
    groups = list(table.groupby(["policy", "over"], sort=False))
    step = np.min(np.diff(sorted(table[axis].unique()))) if table[axis].nunique() > 1 else 1
    for i, ((policy, over), g) in enumerate(groups):
        where = g[axis] + (i - (len(groups) - 1) / 2) * 0.12 * step
        error = np.vstack([g.lead - g.low, g.high - g.lead])
        label = name.format(policy=policy, over=over)
        ax.errorbar(where, g.lead, error, fmt="o-", color=COLOURS[policy], capsize=3, label=label)
        for column in [c for c in g if c.startswith("seed ")]:
            ax.plot(where, g[column], ".", color=COLOURS[policy], ms=3, alpha=0.6)
    ax.axhline(0, color="#444444", lw=1)
    ax.set_xticks(sorted(table[axis].unique()))
    ax.set_xlabel(_AXES[axis])


def surface_difference(data: pd.DataFrame, policy: str, ax: Axes) -> None:
    """Heat map with contours of Pass@(K,T), `policy` minus Base, over K and T."""
    means = data[data.seed == "mean"]
    rl, base = (means[means.policy == p].pivot(index="K", columns="T", values="pass") for p in (policy, "Base"))
    gap = rl - base
    limit = max(0.05, float(np.abs(gap.to_numpy()).max()))
    every = -(-gap.shape[1] // 7)
    sns.heatmap(gap, cmap="RdBu", center=0, vmin=-limit, vmax=limit, ax=ax, xticklabels=every, yticklabels=1)
    ax.invert_yaxis()
    xs, ys = np.arange(gap.shape[1]) + 0.5, np.arange(gap.shape[0]) + 0.5
    lines = ax.contour(xs, ys, gap.to_numpy(), levels=5, colors="#333333", linewidths=0.7)
    ax.clabel(lines, fmt="%.2f", fontsize=7)
    ax.set(xlabel=_AXES["T"], ylabel=_AXES["K"])


def _once_a_row(fig: Figure) -> None:
    """Hide a y label that stands further left in the same row of panels already."""
    placed = [(ax, spec) for ax in fig.axes if (spec := ax.get_subplotspec()) is not None]
    seen = set()
    for ax, spec in sorted(placed, key=lambda p: p[1].colspan.start):
        row = (spec.rowspan.start, spec.rowspan.stop, ax.get_ylabel())
        ax.yaxis.label.set_visible(row not in seen)
        seen.add(row)


def save_figure(fig: Figure, name: str, data: pd.DataFrame, profile: str) -> Path:
    """Write `figures/<name>.png`, `.pdf` and the `.csv` that was drawn, and return the PNG's path."""
    folder = results_dir(profile) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    _once_a_row(fig)
    fig.savefig(folder / f"{name}.png", bbox_inches="tight", metadata={"Software": None})
    fig.savefig(folder / f"{name}.pdf", bbox_inches="tight", metadata={"CreationDate": None, "Producer": None})
    write_whole(folder / f"{name}.csv", data.to_csv(index=False, lineterminator="\n"))
    return folder / f"{name}.png"


def claim_intervals(table: pd.DataFrame, ax: Axes) -> None:
    """Draw how far every claim's interval lies from its rule's boundary, the claim's side to the right, in half-widths
    of the interval: claims have different units, and a bar that does not cross the line is a verdict."""
    colour = {"supported": "#009E73", "opposite": "#D55E00", "inconclusive": "#777777"}
    for i, row in enumerate(table.itertuples()):
        half = max((row.high - row.low) / 2, 1e-9)
        gap = row.boundary - abs(row.estimate) if row.side == "within" else row.estimate - row.boundary
        centre = float(np.clip((-gap if row.side == "<" else gap) / half, -8, 8))
        ax.errorbar(centre, i, xerr=1, fmt="o", color=colour[row.verdict], capsize=3)
    ax.set_yticks(range(len(table)), [f"{r.claim} · {r.environment} · {r.verdict}" for r in table.itertuples()])
    ax.invert_yaxis()
    ax.axvline(0, color="#444444", lw=1)
    ax.set_xlabel("distance from the rule's boundary, in half-widths of the interval (right: for the claim)")


def outcome_bars(shares: pd.DataFrame, ax: Axes) -> None:
    """Draw shares of better, equal and worse states by source, a bar the mean over seeds, a dot a seed."""
    palette = {"better": COLOURS["GRPO, full budget"], "equal": "#BBBBBB", "worse": "#000000"}
    named = shares.assign(source=shares.source.replace({"base": "Base", "rl": "RL"}))
    where = {"x": "source", "y": "estimate", "hue": "outcome", "data": named, "ax": ax, "palette": palette}
    sns.barplot(**where, errorbar=None, alpha=0.75)
    sns.stripplot(**where, dodge=True, size=3.5, edgecolor="white", linewidth=0.5, jitter=False, legend=False)
    ax.axhline(0.5, color="#444444", lw=1, ls=":")
    ax.set(xlabel="states from trajectories of", ylabel="share of states", ylim=(0, 1))
    ax.legend(loc="upper center", ncols=3, fontsize=8)


def seed_lines(data: pd.DataFrame, x: str, y: str, ax: Axes, colour: str = COLOURS["GRPO, full budget"]) -> None:
    """Draw `y` over `x`: a thin line a seed (column `seed`), and their mean."""
    for _, line in data.groupby("seed"):
        ax.plot(line[x], line[y], color=colour, lw=0.7, alpha=0.6)
    mean = data.groupby(x)[y].mean()
    ax.plot(mean.index, mean, color=colour, lw=2, marker="o", ms=3.5)


def arm_lines(data: pd.DataFrame, x: str, y: str, ax: Axes) -> None:
    """Draw `y` over `x` for every arm (column `arm`): thin lines for seeds, a thick one for their mean."""
    for arm, group in data.groupby("arm", sort=False):
        seed_lines(group, x, y, ax, COLOURS[ARMS[arm].label])
        ax.lines[-1].set_label(ARMS[arm].label)


def policy_histogram(data: pd.DataFrame, column: str, ax: Axes) -> None:
    """Draw the distribution of `column` for base's and RL's trajectories (column `source`), its middle 99 %."""
    if data.empty:
        ax.text(0.5, 0.5, "none", ha="center", transform=ax.transAxes)
        return
    colours = {"Base": COLOURS["Base"], "RL": COLOURS["GRPO, full budget"]}
    named = data.assign(policy=data.source.map({"base": "Base", "rl": "RL"}))
    middle = named[named[column].between(*named[column].quantile([0.005, 0.995]))]
    where = {"x": column, "hue": "policy", "hue_order": list(colours), "palette": colours, "ax": ax}
    sns.histplot(middle, **where, stat="density", common_norm=False, element="step", bins=40)
    if legend := ax.get_legend():
        legend.set_title("")
