"""FrozenLake in words: the rules, what is seen each turn, and what an answer means."""

from __future__ import annotations

import re

from lib.envs.frozenlake_mdp import ACTIONS, MOVES

OBSERVATIONS = ("grid", "coordinates", "both", "local")
HELP = "Answer with one word: Left, Down, Right or Up."

_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
_WORD = re.compile(r"[\s\W_]*(left|down|right|up)[\s\W_]*", re.IGNORECASE | re.ASCII)
_SYMBOLS = {"F": "_", "S": "_", "H": "O", "G": "G"}


def rules(observation: str, slippery: bool) -> str:
    """The system message: at most 60 words, so that a tiny model's prompt stays short."""
    text = "You walk on a frozen lake. P is you, _ is ice, O is a hole, G is the goal. Reach G without falling into O. "
    if slippery:
        text += "The ice may slip you sideways. "
    if observation == "local":
        text += "You see P and G by row and column, then the cells Left, Down, Right, Up of you, # is the edge. "
    elif observation != "grid":
        text += "Row 1, column 1 is top left. "
    return text + HELP


def board(observation: str, desc: tuple[str, ...], position: int, with_map: bool) -> str:
    """What is seen of the map in one of OBSERVATIONS; with_map: the first message of an episode."""
    size = len(desc)
    row, column = divmod(position, size)
    cells = [_SYMBOLS[c] for c in "".join(desc)]
    if observation == "local":
        near = [(row + dr, column + dc) for dr, dc in MOVES]
        seen = [cells[r * size + c] if 0 <= r < size and 0 <= c < size else "#" for r, c in near]
        goal_row, goal_column = divmod(cells.index("G"), size)
        return f"P {row + 1} {column + 1} G {goal_row + 1} {goal_column + 1}\n" + " ".join(seen)
    lines = []
    if observation in ("grid", "both") or with_map:
        cells[position] = "P"
        lines += [" ".join(cells[i : i + size]) for i in range(0, size * size, size)]
    if observation in ("coordinates", "both"):
        lines.append(f"row {row + 1}, column {column + 1}")
    return "\n".join(lines)


def turns_left_line(turns: int) -> str:
    """The line that tells the budget where it is shown."""
    return f"\nYou have {turns} turn{'s' * (turns != 1)} left."


def parse(text: str) -> int | None:
    """The action of an answer that is one of the four words and nothing else, punctuation aside; None for any other.

    Read outside `<think>`, and inside the last `<answer>` if there is one. Strict, because words around the action would
    be free of cost: a policy under training drifts into them, until it babbles.
    """  # noqa: E501
    text = _THINK.sub(" ", text)
    word = _WORD.fullmatch((_ANSWER.findall(text) or [text])[-1])
    return ACTIONS.index(word[1].capitalize()) if word else None
