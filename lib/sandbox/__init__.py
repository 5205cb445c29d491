"""Running a model's code safely and fast: `Pool`, `Job`, `Limits`, `Result`; the host compares (`grade`)."""

from lib.sandbox.cache import run_once
from lib.sandbox.grade import same_stdout, same_value
from lib.sandbox.jobs import Job, Limits, Result
from lib.sandbox.pool import Pool, SandboxError, SandboxUnavailable, shared_pool

__all__ = [
    "Job", "Limits", "Pool", "Result", "SandboxError", "SandboxUnavailable", "run_once", "same_stdout", "same_value",
    "shared_pool",
]  # fmt: skip
