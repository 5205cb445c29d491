"""The explorer's widgets for JupyterLab (notebooks/explore.ipynb): `Explorer("tiny")` is one widget to display."""

from __future__ import annotations

import io
from collections.abc import Callable

import ipywidgets as w
from transformers.utils.logging import disable_progress_bar

from lib import explore, explore_view
from lib.config import ARMS
from lib.envs.frozenlake import FrozenLake
from lib.profiles import experiments

_LABEL = {"description_width": "85px"}


class Explorer(w.VBox):
    """Choose environment, policy, checkpoint and episode; step through it; go on from a state with either policy.

    profile: a name in lib.profiles.PROFILES. Raises ValueError for an unknown one. What goes wrong later is shown, and
    stands in `problem`, since JupyterLab shows nothing of an exception in a callback. What is chosen stands in `pair`
    (None where its episodes are not stored), `episode`, and `steps` (the table of `lib.explore.steps`).
    """

    def __init__(self, profile: str = "tiny"):
        disable_progress_bar()  # one for each model would pile up above the widgets
        self.pair: explore.Pair | None = None
        self._busy = False  # while one choice fills the others, their own changes do nothing
        self.env = _choice("Environment", "260px", [(x.name, x) for x in experiments(profile)])
        self.arm, self.checkpoint = _choice("Policy", "330px"), _choice("Checkpoint", "370px")
        names = [("the trained policy", "rl"), ("its base policy", "base")]
        self.source = _choice("Played by", "260px", names)
        self.task, self.sample = _choice("Task", "420px"), _choice("Sample", "280px")
        self.turn = w.IntSlider(1, 1, 1, description="Turn", style=_LABEL, layout=w.Layout(width="460px"))
        self.message, self.board = w.HTML(), w.Image(format="png", layout=w.Layout(max_width="980px"))
        self.transcript, self.overview, self.continued = w.HTML(), w.HTML(), w.HTML()
        self.samples = w.BoundedIntText(8, min=1, max=64, description="times", layout=w.Layout(width="150px"))
        self.seed = w.BoundedIntText(0, min=0, max=10**6, description="seed", layout=w.Layout(width="170px"))
        chosen = ((self.env, self._arms), (self.arm, self._checkpoints), (self.checkpoint, self._open),
                  (self.source, self._tasks), (self.task, self._samples), (self.sample, self._turns),
                  (self.turn, self._show))  # fmt: skip
        for widget, then in chosen:
            widget.observe(lambda _, then=then: self._do(then), names="value")
        self.back = self._button("◀ back", lambda: self._move(self.turn.value - 1))
        self.step = self._button("step ▶", lambda: self._move(self.turn.value + 1))
        self.jump = self._button("next error state", self._jump)
        self.go_on = {
            who: self._button(f"go on with {explore_view.NAMES[who]}", lambda who=who: self._continue(who))
            for who in ("base", "rl")
        }
        tabs = w.Tab([_scroll(self.transcript), _scroll(self.overview)], titles=("Transcript", "All steps"))
        super().__init__([
            w.HBox([self.env, self.arm, self.checkpoint]), w.HBox([self.source, self.task, self.sample]),
            w.HBox([self.turn, self.back, self.step, self.jump]), self.message, self.board, tabs,
            w.HBox([w.HTML("<b>From this state:</b>"), *self.go_on.values(), self.samples, self.seed]),
            _scroll(self.continued),
        ])  # fmt: skip
        self._do(self._arms)

    def _button(self, label: str, then: Callable[[], None]) -> w.Button:
        button = w.Button(description=label, layout=w.Layout(width="auto"))
        button.on_click(lambda _: self._do(then))
        return button

    def _do(self, then: Callable[[], None]) -> None:
        if self._busy:
            return
        self._busy, self.problem = True, ""
        try:
            then()
        except Exception as error:  # whatever it is, the reader must see it
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self._busy = False
        text = explore_view.shown(self.problem)
        self.message.value = f"<b style='color:#b00020; white-space:pre-wrap'>{text}</b>" * bool(text)

    @property
    def episode(self) -> explore.Episode:
        """The chosen one. Raises LookupError where none is stored."""
        if self.pair is None:
            raise LookupError("no stored episode is chosen")
        return self.pair.episodes[self.source.value][self.task.value, self.sample.value]

    def _arms(self) -> None:
        _fill(self.arm, [(ARMS[a].label, a) for a in self.env.value.arms])
        self._checkpoints()

    def _checkpoints(self) -> None:
        found = explore.checkpoints(self.env.value, self.arm.value)
        _fill(self.checkpoint, [(c.label + " (no episodes yet)" * (not explore.is_stored(c)), c) for c in found])
        self._open()

    def _open(self) -> None:
        self.pair, self.board.value = None, b""
        self.transcript.value = self.overview.value = self.continued.value = ""
        _fill(self.task, [])
        _fill(self.sample, [])
        self.pair = explore.open_pair(self.checkpoint.value)
        self._tasks()

    def _tasks(self) -> None:
        if self.pair is None:
            return
        options = [
            (f"{sum(e.solved for e in played)}/{len(played)} solved · {task}", task)
            for task, played in self.pair.tasks(self.source.value).items()
        ]
        _fill(self.task, options)
        self._samples()

    def _samples(self) -> None:
        played = self.pair.tasks(self.source.value)[self.task.value]
        _fill(self.sample, [(f"{e.sample}: {e.end.value} after {len(e.turns)} turns", e.sample) for e in played])
        self._turns()

    def _turns(self, turn: int = 1) -> None:
        self.steps = explore.steps(self.pair, self.source.value, self.episode)
        self.turn.max = max(1, len(self.episode.turns))
        self.turn.value = turn
        self._show()

    def _move(self, turn: int) -> None:
        self.turn.value = turn  # the slider keeps it within its ends
        self._show()

    def _show(self) -> None:
        e, turn, tokenizer = self.episode, self.turn.value, self.pair.policies["rl"].tokenizer
        self.transcript.value = explore_view.transcript(tokenizer, e, self.steps, now=turn)
        self.overview.value, self.continued.value = explore_view.overview(self.steps, turn), ""
        self.board.layout.display = "" if self._draw(turn) else "none"

    def _draw(self, turn: int) -> bool:
        if self.pair.env_class is not FrozenLake or not self.episode.turns:
            return False
        state = explore.moment(self.pair, self.source.value, self.task.value, self.sample.value, turn)
        env = FrozenLake(self.pair.config)
        env.restore(state.snapshot)
        figure = explore_view.board(env, explore.probabilities(self.pair, state), self.episode.turns[turn - 1].text)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=100)
        self.board.value = png.getvalue()
        return True

    def _jump(self) -> None:
        e = self.episode
        at = explore.next_error_state(self.pair, self.source.value, e.task, e.sample, self.turn.value)
        if at is None:
            raise LookupError("no stored episode of this policy has an error state")
        self.task.value, sample, turn = at
        self._samples()
        self.sample.value = sample
        self._turns(turn)

    def _continue(self, who: str) -> None:
        e, turn = self.episode, self.turn.value
        state = explore.moment(self.pair, self.source.value, e.task, e.sample, turn)
        played = explore.continue_here(self.pair, state, who, self.samples.value, self.seed.value)
        self.continued.value = explore_view.continuations(self.pair.policies[who].tokenizer, who, played, turn)


def _choice(label: str, width: str, options: list = ()) -> w.Dropdown:
    return w.Dropdown(description=label, options=options, style=_LABEL, layout=w.Layout(width=width))


def _fill(widget: w.Dropdown, options: list) -> None:
    """Give a choice new options; what was chosen stays chosen where it is one of them, else the first is."""
    before = widget.value
    widget.options, values = options, [value for _, value in options]
    if values:
        widget.index = values.index(before) if before in values else 0


def _scroll(widget: w.Widget) -> w.Box:
    return w.Box([widget], layout=w.Layout(max_height="480px", overflow="auto"))
