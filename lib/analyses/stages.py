"""The analyses as steps of the cache: each is made once for a trained policy and found again.

    matched_states(x, arm, seed)    step quality at matched states (§3.3)
    error_states(x, arm, seed)      better action and continuation success from error states (§3.3)
    likelihood(x, arm, seed)        action NLL and LLR of stored trajectories (§4.1)
    training_dynamics(x, seeds)     R_multi and R_single through training (§4.2); only reads what training left

Each compares the RL policy of (arm, seed) with the base policy that it was trained from, on the test panel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from lib.analyses.config import AnalysisConfig
from lib.analyses.dynamics import probe_curves
from lib.config import Experiment
from lib.envs.base import env_class
from lib.stages import RUNS, base_step, episodes, episodes_step, train_step, weights
from lib.store import run_step


def matched_states(x: Experiment, arm: str, seed: int, analysis: AnalysisConfig | None = None) -> pd.DataFrame:
    """See `lib.analyses.step_quality.matched_states`. Raises ValueError for an environment without a step measure."""
    _check_measure(x)
    return _found_or_made("matched", x, arm, seed, analysis, _matched, "lib.analyses.step_quality")


def _matched(x, cls, config, base, rl, base_episodes, rl_episodes, analysis) -> pd.DataFrame:
    from lib.analyses import step_quality

    return step_quality.matched_states(base, rl, cls, config, base_episodes, rl_episodes, analysis)


def error_states(x: Experiment, arm: str, seed: int, analysis: AnalysisConfig | None = None) -> pd.DataFrame:
    """See `lib.analyses.error_states.error_states`; "forced" states only where the environment names its action texts.

    Raises ValueError for an environment without a step measure.
    """
    _check_measure(x)
    return _found_or_made("errors", x, arm, seed, analysis, _errors, "lib.analyses.error_states")


def _errors(x, cls, config, base, rl, base_episodes, rl_episodes, analysis) -> pd.DataFrame:
    from lib.analyses import error_states

    which = error_states.CONSTRUCTIONS if cls.action_names else ("visited",)
    return error_states.error_states(base, rl, cls, config, base_episodes, rl_episodes, analysis, which)


def likelihood(x: Experiment, arm: str, seed: int, analysis: AnalysisConfig | None = None) -> pd.DataFrame:
    """See `lib.analyses.likelihood.action_likelihood`."""
    return _found_or_made("likelihood", x, arm, seed, analysis, _likelihood, "lib.analyses.likelihood")


def _likelihood(x, cls, config, base, rl, base_episodes, rl_episodes, analysis) -> pd.DataFrame:
    from lib.analyses.likelihood import action_likelihood

    return action_likelihood(base, rl, base_episodes, rl_episodes, x.t_max, analysis.likelihood_samples)


def training_dynamics(x: Experiment, seeds: Sequence[int], arms: Sequence[str] | None = None) -> pd.DataFrame:
    """See `lib.analyses.dynamics.probe_curves`; arms: default all of the experiment."""
    return probe_curves((a, s, train_step(x, a, s)) for a in (arms or x.arms) for s in seeds)


def analyse(x: Experiment, arm: str, seed: int) -> None:
    """All analyses of one policy that its environment allows."""
    if env_class(x.env).has_step_measure:
        matched_states(x, arm, seed)
        error_states(x, arm, seed)
    likelihood(x, arm, seed)


def _check_measure(x: Experiment) -> None:
    if not env_class(x.env).has_step_measure:
        raise ValueError(f"{x.env} has no step measure: matched and error states need one (paper, limits)")


def _found_or_made(
    kind: str, x: Experiment, arm: str, seed: int, analysis: AnalysisConfig | None, make: Callable, module: str
) -> pd.DataFrame:
    if arm not in x.arms:
        raise ValueError(f"arm {arm!r}: {x.profile}/{x.env} has {', '.join(x.arms)}, compared with the base policy")
    analysis = analysis or x.analysis
    base = x.base_arm(arm)
    steps = base_step(x, base), train_step(x, arm, seed)
    played = episodes_step(x, base), episodes_step(x, arm, seed)
    about = {"env": x.env, "env_config": x.arm_env_config(arm), "policy": x.policy, "analysis": analysis}
    sources = module, __name__, env_class(x.env).__module__
    fn = partial(_make, x, base, arm, seed, analysis, make, steps)
    name = f"{kind}-{x.name}-{arm}-s{seed}"
    step = run_step(name, about, fn, root=RUNS, inputs=[*steps, *played], source=sources)
    return pd.read_parquet(step / "table.parquet")


def _make(
    x: Experiment, base_arm: str, arm: str, seed: int, analysis: AnalysisConfig, make: Callable,
    steps: tuple[Path, Path], out: Path,
) -> dict[str, Any]:  # fmt: skip
    score = replace(x.policy, engine="hf", server="")  # states are scored and played on by the model itself

    base, rl = (score.load(weights(x, s)) for s in steps)
    rollouts = episodes(x, base_arm), episodes(x, arm, seed)
    df = make(x, env_class(x.env), x.arm_env_config(arm), base, rl, *rollouts, analysis)
    df.to_parquet(out / "table.parquet", index=False)
    return {"rows": len(df)}
