"""Train one run of a profile on several processes, on the GPUs or cores of one machine or of more:

    torchrun --nproc_per_node 2 -m lib.trainers.launch --profile tiny --env frozenlake --arm grpo --seed 0

or `make train NPROC=2 ARM=grpo SEED=0`. The run lands in the step cache under the key that it has with one process, so
that `make reproduce` finds it; a run that was interrupted is resumed, with any number of processes. What differs from
one process: sums are taken in another order, so that weights differ by rounding (1e-6 after the first updates), and in
the long run a sampled word can differ; the manifest's result tells the number of `processes`; `seconds_…` in
metrics.jsonl are rank 0's. Machines must share the folder `results/runs`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import transformers

from lib.config import ARMS
from lib.profiles import PROFILES, experiment
from lib.stages import train_step
from lib.trainers import ranks


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lib.trainers.launch", description="Train one run.")
    parser.add_argument("--profile", default="tiny", help=f"one of {', '.join(PROFILES)} (default: %(default)s)")
    parser.add_argument("--env", default="frozenlake", help="an environment of the profile (default: %(default)s)")
    parser.add_argument("--arm", default="grpo", help=f"one of {', '.join(ARMS)} (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the run (default: %(default)s)")
    args = parser.parse_args(argv)
    transformers.utils.logging.disable_progress_bar()
    try:
        x = experiment(args.profile, args.env)
        x.train_config(args.arm, args.seed)  # refuses an unknown arm on every rank, before any waits for another
        step = train_step(x, args.arm, args.seed)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error on rank {ranks.index()}: {error}", file=sys.stderr)
        return 1
    if ranks.index() == 0:
        print(step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
