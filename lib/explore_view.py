"""What the explorer shows: a FrozenLake board with Q*_t, and any episode as a transcript.

A transcript holds texts that a model or a program wrote: all of it is escaped, and characters that cannot be seen
(control characters, changes of the reading direction) are written out.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon, Rectangle

from lib.envs.frozenlake import ACTIONS, FrozenLake
from lib.envs.frozenlake_mdp import MOVES, q_table
from lib.episode import Episode
from lib.figures import COLOURS

LONG = 1200  # characters; longer messages are folded
COLOUR = {"base": COLOURS["Base"], "rl": COLOURS["GRPO, full budget"]}
NAMES = {"base": "base", "rl": "RL"}
_CORNERS = np.array([[0, 0], [0, 1], [1, 1], [1, 0], [0, 0]])  # (x, y), y down: of Left, Down, Right, Up
_STYLE = """<style>
.xp {font: 13px/1.4 sans-serif; color: #111; background: #fff; padding: 4px; max-width: 1000px}
.xp pre {font: 12px/1.35 monospace; white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere;
 margin: 1px 0; padding: 3px 8px; border-radius: 3px; background: #f3f4f6; color: #111}
.xp pre.act {background: #e3eefc} .xp .now {outline: 3px solid #D55E00; border-radius: 4px; padding: 2px 5px}
.xp .later {opacity: .45}
.xp .who {color: #555; font-size: 11px; margin-top: 5px} .xp .bad {color: #b00020; font-weight: bold}
.xp table {border-collapse: collapse} .xp td, .xp th {padding: 1px 9px; text-align: right; font-size: 12px}
.xp th {border-bottom: 1px solid #999} .xp tr.here {background: #fde9dc}
</style>"""


def board(env: FrozenLake, probabilities: pd.DataFrame, action: str) -> Figure:
    """The board in the state of `env`, each cell with Q*_t of its four actions for the turns that are left, and beside
    it the probability of each action under both policies (`lib.explore.probabilities`) with Q*_t of the present cell.

    action: the text that was played here; where it is an action it is outlined.
    """
    size = len(env.desc)
    fig = Figure(figsize=(9.8, 4.6))
    left, right = fig.add_axes((0.01, 0.01, 0.45, 0.91)), fig.add_axes((0.57, 0.11, 0.41, 0.81))
    q = q_table(env.desc, env.config.success_rate, env.config.max_turns)[env.turns_left]
    _cells(env, q, left, font=min(8.0, 32 / size))
    played = env.parse(action)
    if played is not None:
        row, column = divmod(env.position, size)
        corners = np.vstack([_CORNERS[played : played + 2], [0.5, 0.5]]) + (column, row)
        left.add_patch(Polygon(corners, fc="none", ec="#D55E00", lw=3.5, zorder=2.5))
    s = "s" * (env.turns_left != 1)
    left.set_title(f"Q* with {env.turns_left} turn{s} left (orange: what was played)", fontsize=9)
    _bars(env.q_values(), probabilities, played, right)
    return fig


def _cells(env: FrozenLake, q: np.ndarray, ax: Axes, font: float) -> None:
    size, colours = len(env.desc), matplotlib.colormaps["YlGn"]
    for state, letter in enumerate("".join(env.desc)):
        row, column = divmod(state, size)
        if letter in "HG":
            ax.add_patch(Rectangle((column, row), 1, 1, fc="#2b3a55" if letter == "H" else "#E69F00", ec="#666666"))
            ax.text(column + 0.5, row + 0.5, "hole" if letter == "H" else "GOAL", ha="center", va="center",
                    color="white" if letter == "H" else "black", fontsize=font + 2)  # fmt: skip
            continue
        for a in range(4):
            corners = np.vstack([_CORNERS[a : a + 2], [0.5, 0.5]]) + (column, row)
            ax.add_patch(Polygon(corners, fc=colours(0.85 * q[state, a]), ec="#aaaaaa", lw=0.5))
            dy, dx = MOVES[a]
            ax.text(column + 0.5 + 0.32 * dx, row + 0.5 + 0.37 * dy, f"{q[state, a]:.2f}", ha="center", va="center",
                    fontsize=font, color="white" if q[state, a] > 0.75 else "black",
                    fontweight="bold" if q[state, a] == q[state].max() > 0 else "normal")  # fmt: skip
        ax.add_patch(Rectangle((column, row), 1, 1, fc="none", ec="#666666"))
    row, column = divmod(env.position, size)
    ax.add_patch(Circle((column + 0.5, row + 0.5), 0.14, fc="white", ec="#D55E00", lw=2.5, zorder=3))
    ax.text(column + 0.5, row + 0.51, "P", ha="center", va="center", fontsize=font + 2, fontweight="bold", zorder=4)
    ax.set(xlim=(-0.15, size + 0.15), ylim=(size + 0.15, -0.15), aspect="equal")
    ax.axis("off")


def _bars(q: np.ndarray, probabilities: pd.DataFrame, played: int | None, ax: Axes) -> None:
    where = np.arange(len(probabilities))[::-1]
    for column, offset in (("base", 0.2), ("rl", -0.2)):
        p = probabilities[column].to_numpy()
        ax.barh(where + offset, p, 0.38, color=COLOUR[column], label=NAMES[column])
        for y, value in zip(where + offset, p, strict=True):
            ax.text(value + 0.01, y, f"{value:.2f}", va="center", fontsize=8)
    labels = [f"{a}\nQ* {v:.3f}" for a, v in zip(ACTIONS, q, strict=True)] + ["other\nanswers"]
    ax.set_yticks(where, labels, fontsize=9)
    label = ax.get_yticklabels()[len(ACTIONS) if played is None else played]
    label.set(color="#D55E00", fontweight="bold")
    ax.set(xlim=(0, 1.12), xlabel="probability")
    ax.set_title("probability of each answer", fontsize=9)
    ax.legend(loc="lower right", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)


def shown(text: str) -> str:
    """Text as HTML that shows exactly its characters: escaped, and what cannot be seen written out as in Python."""
    visible = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    return html.escape(visible, quote=True)


def messages(tokenizer, tokens: Sequence[int]) -> list[tuple[str, str]]:
    """The messages (role, text) in the tokens before an action: the chat template's special tokens part them, and their
    first line is the role ("" where there is none). The empty one in which the action is to stand is left out."""
    special = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    text = tokenizer.decode(list(tokens), skip_special_tokens=False)
    out = []
    for part in re.split("|".join(map(re.escape, special)), text) if special else [text]:
        role, line, rest = part.partition("\n")
        if not (line and role.strip() in ("system", "user", "assistant", "tool")):
            role, rest = "", part
        if rest.strip():
            out.append((role.strip(), rest.strip("\n")))
    return out


def transcript(tokenizer, episode: Episode, steps: pd.DataFrame | None = None, now: int = 0, first: int = 1) -> str:
    """An episode as HTML: what the environment said, what the policy answered, and how it ended.

    steps: of `lib.explore.steps`; its numbers then stand at each turn. now: the turn (from 1) that is marked, those
    after it are pale and those long before it folded (0: none). first: number of the first turn; above 1 for a
    continuation, whose past is left out.
    """
    parts = [_STYLE, "<div class='xp'>"]
    folded = range(0, now - 2) if now > 3 else range(0)  # so that the marked turn is in sight
    for i, t in enumerate(episode.turns):
        parts.append(f"<div class='{'later' if 0 < now < i + 1 else ''}'>")
        if i or first == 1:
            parts += [_message(role or "environment", text) for role, text in messages(tokenizer, t.context)]
        if folded and i == 0:
            parts.append(f"</div><details><summary>turns 1 to {folded.stop}</summary><div>")
        numbers = "" if steps is None else " · " + _numbers(steps.iloc[i])
        invalid = " <span class='bad'>invalid</span>" * t.invalid
        parts.append(f"<div class='{'now' if now == i + 1 else ''}'><div class='who'><b>turn {i + first}</b>{invalid}")
        parts.append(f"{numbers}</div><pre class='act'>{shown(t.text) or '(empty)'}</pre></div></div>")
        parts.append("</details>" * (i + 1 == folded.stop))
    said = f": {shown(episode.error)}" if episode.error else ""
    parts.append(f"<div class='who'><b>ended: {episode.end.value}</b> after {len(episode.turns)} turns, ")
    parts.append(f"reward {episode.reward:.3g}{said}</div></div>")
    return "".join(parts)


def _message(role: str, text: str) -> str:
    body = f"<pre>{shown(text)}</pre>"
    if len(text) > LONG:
        body = f"<details><summary>{len(text)} characters: {shown(text[:100])} …</summary>{body}</details>"
    return f"<div class='who'>{shown(role)}</div>{body}"


def _numbers(s: pd.Series) -> str:
    parts = []
    if not math.isnan(s.quality):
        parts.append(f"quality {s.quality:.3f} of {s.best:.3f}")
        parts.append(f"<span class='bad'>error, loses {s.loss:.3f}</span>" if s.error else f"loses {s.loss:.3f}")
    parts.append(f"NLL under base {s.nll_base:.2f}, under RL {s.nll_rl:.2f}, LLR {s.llr:+.2f}")
    return " · ".join(parts)


def overview(steps: pd.DataFrame, now: int) -> str:
    """The steps of an episode as an HTML table, one line a turn, that of turn `now` marked; and the sum of the LLR."""
    measured = not steps.quality.isna().all()
    head = ["turn", "action", *(["quality", "best", "loss"] * measured), "NLL base", "NLL RL", "LLR", "sum of LLR"]
    rows = ["".join(f"<th>{h}</th>" for h in head)]
    for s, total in zip(steps.itertuples(), steps.llr.cumsum(), strict=True):
        text = s.action if len(s.action) <= 30 else s.action[:29] + "…"
        cells = [str(s.turn), shown(text.replace("\n", " ")) + " <span class='bad'>invalid</span>" * s.invalid]
        if measured:
            loss = f"<span class='bad'>{s.loss:.3f}</span>" if s.error else f"{s.loss:.3f}"
            cells += [f"{s.quality:.3f}", f"{s.best:.3f}", loss]
        cells += [f"{s.nll_base:.2f}", f"{s.nll_rl:.2f}", f"{s.llr:+.2f}", f"{total:+.2f}"]
        rows.append("".join(f"<td>{c}</td>" for c in cells))
    lines = "".join(f"<tr class='{'here' if i == now else ''}'>{r}</tr>" for i, r in enumerate(rows))
    return f"{_STYLE}<div class='xp'><table>{lines}</table></div>"


def continuations(tokenizer, who: str, played: Sequence[Episode], turn: int) -> str:
    """Continuations from the state before turn number `turn` as HTML: how many were solved, then each one folded."""
    solved = sum(e.solved for e in played)
    parts = [f"{_STYLE}<div class='xp'><b>{NAMES[who]} from turn {turn} on: {solved} of {len(played)} solved</b>"]
    for e in played:
        is_open = " open" * (len(played) == 1)
        line = f"sample {e.sample}: {e.end.value} after {len(e.turns)} more turns"
        body = transcript(tokenizer, e, first=turn).removeprefix(_STYLE)
        parts.append(f"<details{is_open}><summary>{line}</summary>{body}</details>")
    return "".join(parts) + "</div>"
