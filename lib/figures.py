"""The figures, in one visual language: policy = colour, environment = panel, seeds = thin lines, interval = band,
structural bound = dashed line. The first six arms have Okabe and Ito's colours, which colour-blind readers can tell
apart; three darker ones of our own follow, and arms that a user adds take seaborn's "husl" colours in turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lib.config import ARMS, results_dir
from lib.tables import write_whole

BOUND = "Structural bound"
_AXES = {"K": "K (samples)", "T": "T (turns)"}
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_OURS = ("#8C6D31", "#7A5195", "#555555")
_MORE = cycle(sns.color_palette("husl", 8).as_hex())
COLOURS = {"Base": "#000000", BOUND: "#888888"} | {
    arm.label: colour for arm, colour in zip(ARMS.values(), _OKABE_ITO + _OURS, strict=False)
}
_VERDICTS = {"supported": "#009E73", "opposite": "#D55E00", "inconclusive": "#777777"}


def colour_of(policy: str) -> str:
    """The colour of a policy by its name in figures; a name without one gets the next further colour, and keeps it."""
    if policy not in COLOURS:
        COLOURS[policy] = next(_MORE)
    return COLOURS[policy]


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
    if known:
        fig.legend(known.values(), known, loc="outside lower center", ncols=min(4, len(known)), fontsize=8)


def _ticks(points: Sequence[int]) -> list[int]:
    """Ticks for values of K or T: all of them up to ten, else the first and multiples of about a quarter."""
    points = sorted(points)
    step = max(1, points[-1] // 4)
    return points if len(points) <= 10 else [points[0], *(p for p in points if p > points[0] and p % step == 0)]


def _pass_name(table: pd.DataFrame, axis: str) -> str:
    """Pass@(K,T) as the y label: the one that is not on the x axis by its value, where there is only one."""
    names = {n: str(table[n].iloc[0]) if n != axis and table[n].nunique() == 1 else n for n in "KT"}
    return "Pass@({K},{T})".format(**names)


def curves(data: pd.DataFrame, axis: str, ax: Axes, bound: pd.DataFrame | None = None, bands: bool = True) -> None:
    """Draw Pass@(K,T) over `axis` ("K" or "T") as `lib.curves.pass_curves` returns it, and the structural bound.

    bands: intervals over tasks; leave them out where many curves lie close together."""
    for policy, group in data.groupby("policy", sort=False):
        colour = colour_of(policy)
        for seed, line in group.groupby("seed"):
            if seed != "mean":
                ax.plot(line[axis], line["pass"], color=colour, lw=0.6, alpha=0.5)
        mean = group[group.seed == "mean"]
        ax.plot(mean[axis], mean["pass"], color=colour, lw=2, marker="o", ms=3.5, label=policy)
        if bands:
            ax.fill_between(mean[axis], mean.low, mean.high, color=colour, alpha=0.15, lw=0)
    if bound is not None:
        ax.plot(bound[axis], bound["pass"], color=COLOURS[BOUND], lw=1.5, ls="--", label=BOUND)
    ax.set_xticks(_ticks(data[axis].unique()))
    ax.set(xlabel=_AXES[axis], ylabel=_pass_name(data, axis), ylim=(0, 1.02))


def leads(table: pd.DataFrame, ax: Axes, axis: str = "T", name: str = "{policy} − {over}") -> None:
    """Draw leads as `lib.curves.lead_table` returns them: a large dot and a bar for mean and interval over seeds, small
    dots for the seeds. `name` is what the legend calls them."""
    groups = list(table.groupby(["policy", "over"], sort=False))
    step = np.min(np.diff(sorted(table[axis].unique()))) if table[axis].nunique() > 1 else 1
    for i, ((policy, over), g) in enumerate(groups):
        where = g[axis] + (i - (len(groups) - 1) / 2) * 0.12 * step
        error = np.vstack([g.lead - g.low, g.high - g.lead])
        label = name.format(policy=policy, over=over)
        ax.errorbar(where, g.lead, error, fmt="o-", color=colour_of(policy), ms=5, capsize=3, label=label)
        for column in [c for c in g if c.startswith("seed ")]:
            ax.plot(where, g[column], "o", mfc="white", mec=colour_of(policy), mew=0.8, ms=3, zorder=3)
    ax.plot([], [], "o", mfc="white", mec="#444444", mew=0.8, ms=3, label="one training seed")
    ax.axhline(0, color="#444444", lw=1)
    ax.set_xticks(sorted(table[axis].unique()))
    ax.set(xlabel=_AXES[axis], ylabel=f"lead in {_pass_name(table, axis)}")


def surface_difference(data: pd.DataFrame, policy: str, ax: Axes) -> None:
    """Heat map of Pass@(K,T), `policy` minus Base, over K and T, with contours at the ticks of its colour bar.

    The colours reach as far as the largest difference of this panel, so that panels have scales of their own."""
    means = data[data.seed == "mean"]
    rl, base = (means[means.policy == p].pivot(index="K", columns="T", values="pass") for p in (policy, "Base"))
    gap = rl - base
    limit = max(0.05, float(np.abs(gap.to_numpy()).max()))
    image = ax.pcolormesh(gap.columns, gap.index, gap, cmap="RdBu", vmin=-limit, vmax=limit, shading="nearest")
    bar = ax.figure.colorbar(image, ax=ax, label="difference", ticks=MaxNLocator(5))
    lines = ax.contour(gap.columns, gap.index, gap, levels=bar.get_ticks(), colors="#333333", linewidths=0.7)
    bar.add_lines(lines)
    bar.ax.set_ylim(-limit, limit)
    ax.grid(False)
    ax.set_xticks(_ticks(gap.columns))
    ax.set_yticks(gap.index)
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


def claim_intervals(table: pd.DataFrame, ax: Axes, furthest: float = 8) -> None:
    """Draw how far every claim's interval lies from its rule's boundary, the claim's side to the right, in half-widths
    of the interval: claims have different units, and a bar that does not cross the line is a verdict. What lies beyond
    `furthest` is an arrowhead there; a cross says that all seeds agree and there is no interval."""
    for i, row in enumerate(table.itertuples()):
        if row.low == row.high:
            ax.plot(0, i, "x", color=_VERDICTS[row.verdict])
            continue
        half = (row.high - row.low) / 2
        gap = row.boundary - abs(row.estimate) if row.side == "within" else row.estimate - row.boundary
        centre = (-gap if row.side == "<" else gap) / half
        if abs(centre) > furthest:
            ax.plot(np.sign(centre) * furthest, i, ">" if centre > 0 else "<", color=_VERDICTS[row.verdict])
        else:
            ax.errorbar(centre, i, xerr=1, fmt="o", color=_VERDICTS[row.verdict], capsize=3)
    for verdict, colour in _VERDICTS.items():
        ax.plot([], [], "o", color=colour, label=verdict)
    ax.plot([], [], ">", color="#444444", label=f"further than {furthest:g}")
    if (table.low == table.high).any():
        ax.plot([], [], "x", color=_VERDICTS["inconclusive"], label="seeds agree")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, fontsize=8, columnspacing=1, handletextpad=0.2)
    ax.set_yticks(range(len(table)), [f"{r.claim} · {r.environment} · {r.verdict}" for r in table.itertuples()])
    ax.set(xlim=(-furthest - 1.2, furthest + 1.2), ylim=(len(table) - 0.3, -0.7))
    ax.axvline(0, color="#444444", lw=1)
    ax.set_xlabel("distance from the rule's boundary\nin half-widths of the interval\n← against the claim · for it →")


def outcome_bars(shares: pd.DataFrame, ax: Axes) -> None:
    """Draw shares of better, equal and worse states by source, a bar the mean over seeds, a dot a seed."""
    palette = {"better": COLOURS["GRPO, full budget"], "equal": "#BBBBBB", "worse": "#444444"}
    named = shares.assign(source=shares.source.replace({"base": "Base", "rl": "RL"}))
    where = {"x": "source", "y": "estimate", "hue": "outcome", "data": named, "ax": ax}
    sns.barplot(**where, palette=palette, errorbar=None, saturation=1)
    dots = {"palette": dict.fromkeys(palette, "white"), "edgecolor": "black", "linewidth": 0.8, "size": 3.5}
    sns.stripplot(**where, **dots, dodge=True, jitter=False, legend=False)
    ax.axhline(0.5, color="#444444", lw=1, ls=":")
    ax.set(xlabel="states from trajectories of", ylabel="share of states", ylim=(0, 1))
    ax.get_legend().remove()  # `shared_legend` draws it below the panels


def seed_lines(
    data: pd.DataFrame, x: str, y: str, ax: Axes, colour: str = COLOURS["GRPO, full budget"], name: str | None = None
) -> None:
    """Draw `y` over `x`: a thin line a seed (column `seed`), and a thick one for their mean, `name` in the legend."""
    for _, line in data.groupby("seed"):
        ax.plot(line[x], line[y], color=colour, lw=0.7, alpha=0.6)
    mean = data.groupby(x)[y].mean()
    ax.plot(mean.index, mean, color=colour, lw=2, marker="o", ms=3.5, label=name)


def arm_lines(data: pd.DataFrame, x: str, y: str, ax: Axes) -> None:
    """Draw `y` over `x` for every arm (column `arm`): thin lines for seeds, a thick one for their mean."""
    for arm, group in data.groupby("arm", sort=False):
        name = ARMS[arm].label
        seed_lines(group, x, y, ax, colour_of(name), name)


def policy_histogram(data: pd.DataFrame, column: str, ax: Axes) -> None:
    """Draw the distribution of `column` for base's and RL's trajectories (column `source`), its middle 99 %."""
    if data.empty:
        ax.text(0.5, 0.5, "none", ha="center", transform=ax.transAxes)
        return
    middle = data[data[column].between(*data[column].quantile([0.005, 0.995]))]
    bins = np.histogram_bin_edges(middle[column], 40)
    for source, name, colour in (("base", "Base", COLOURS["Base"]), ("rl", "RL", COLOURS["GRPO, full budget"])):
        values = middle.loc[middle.source == source, column]
        if len(values):
            style = {"histtype": "stepfilled", "facecolor": (colour, 0.25), "edgecolor": colour, "label": name}
            ax.hist(values, bins, density=True, **style)
    ax.set(xlabel=column, ylabel="density")
