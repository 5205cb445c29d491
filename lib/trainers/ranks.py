"""One training run on several processes (ranks), on one machine or more: what they share, and who does what.

`torchrun` starts the processes. Each plays and trains on an equal share of the episodes of an update; episodes, with
their rewards and values, are gathered, so that advantages and metrics are those of one process, also where the episodes
of a group sit on two ranks. Gradients are averaged by DDP. Rank 0 alone writes. All is done here only where there is
more than one process: with one, nothing is imported, copied or sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

TIMEOUT = timedelta(days=1)  # of a rank that waits, for example while rank 0 waits for the lock of a step


def count() -> int:
    """The number of processes, as torchrun tells it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def index() -> int:
    return int(os.environ.get("RANK", "0"))


def start(on_cpu: bool = False) -> None:
    """Connect the processes where that is not done yet: gloo for objects and CPU tensors, NCCL for those of GPUs.
    on_cpu: the model is trained on the CPU."""
    if on_cpu and count() > 1:  # accelerate would say cpu:0, which torch.load does not know when a run is resumed
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    if count() > 1:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group(timeout=TIMEOUT)


def gather(items: Sequence[Any]) -> list[Any]:
    """The items of all ranks, those of rank 0 first; the same list on every rank."""
    if count() == 1:
        return list(items)
    import torch.distributed as dist

    parts: list = [None] * count()
    dist.all_gather_object(parts, list(items))
    return [item for part in parts for item in part]


def share(n: int) -> int:
    """How many of `n` episodes each rank takes. Raises ValueError where they do not go evenly into the ranks."""
    if n % count():
        raise ValueError(
            f"{n} episodes an update (tasks_per_update x group_size) do not go evenly into {count()} processes: change "
            "one of the three numbers"
        )
    return n // count()


def mine(items: Sequence[Any]) -> Sequence[Any]:
    """This rank's part of a sequence that is the same on all ranks: equal pieces, in the order of the ranks."""
    size = len(items) // count()
    return items[index() * size : (index() + 1) * size]


def check(args: Any, accelerator: Any, loss_type: str) -> None:
    """Raises ValueError for a way of starting, or a loss, that would train something else than one process does."""
    if accelerator.num_processes != count() or args.n_gpu > 1:
        raise ValueError(
            f"{accelerator.num_processes} processes with {args.n_gpu} GPUs each, {count()} expected: start one process "
            "a GPU with torchrun, or show one GPU only (CUDA_VISIBLE_DEVICES=0)"
        )
    if accelerator.distributed_type not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise ValueError(f"{accelerator.distributed_type}: the policy must be whole on each rank (DDP), not sharded")
    if loss_type == "bnpo" and count() > 1:
        raise ValueError("loss_type 'bnpo' would average on each rank by itself: 'dapo' is the same mean over all")


def through(model: Any, plain: Any, fn: Callable[[], Any]) -> Any:
    """What `fn()` computes with the module `plain`, as a forward pass of `model`, its DDP wrapper or itself.

    DDP averages the gradients of passes through its own `forward` only; without it each rank would quietly train alone.
    """
    if model is plain:
        return fn()
    from trl.models.utils import _ForwardRedirection

    return _ForwardRedirection()(model, plain, fn)


def first(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `fn` on rank 0 alone. The others take part in what it calls `everywhere`, and get its result."""
    if count() == 1:
        return fn(*args, **kwargs)
    start()
    if index() == 0:
        return _send((None, fn(*args, **kwargs)))[1]
    while (job := _send(None))[0] is not None:
        job[0](*job[1])
    return job[1]


def everywhere(fn: Callable[..., Any], *args: Any) -> Any:
    """Within `first`: call `fn(*args)`, which can be pickled, on all ranks; the result of rank 0."""
    if count() > 1:
        _send((fn, args))
    return fn(*args)


def _send(what: Any) -> Any:
    """What rank 0 sends, on all ranks."""
    import torch.distributed as dist

    box = [what]
    dist.broadcast_object_list(box, src=0)
    return box[0]
