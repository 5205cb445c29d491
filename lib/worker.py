"""How a process starts that works off runs: one thread, and an end with its driver."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def end_with_driver() -> None:
    """This process is killed when the one that started it dies, so that a killed run leaves nothing behind (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def start_worker() -> None:
    """For a process that computes itself. Before it loads numpy or torch, OMP_NUM_THREADS must be 1 already."""
    end_with_driver()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
