"""What the tests of the trainer share: environments with rewards of every size and with errors, a trainer, its rows."""

from lib.envs.frozenlake import FrozenLake
from lib.trainers.config import TrainConfig
from lib.trainers.trainer import AgentTrainer

SMALL = {"updates": 2, "tasks_per_update": 2, "group_size": 4, "warmup": 0, "save_every": 2, "kl_episodes": 2}


class Lengths(FrozenLake):
    """Rewards long answers, so that every group has a spread."""

    def step(self, action):
        step = super().step(action)
        return step._replace(reward=step.reward + len(action) / 10)


class Flaky(Lengths):
    """A part of the episodes cannot start, another part fails in the second turn."""

    def reset(self, task, seed, budget=None):
        if seed % 5 == 0:
            raise OSError("no disk")
        return super().reset(task, seed, budget)

    def step(self, action):
        if self.seed % 3 == 0 and self.turns == 1:
            raise TimeoutError("no answer")
        return super().step(action)


def make(policy, lake, out, env=Lengths, **run):
    trainer = AgentTrainer(policy, env, lake.config, TrainConfig(**SMALL | run), lake.tasks, lake.probe, out)
    trainer.current_gradient_accumulation_steps = 1  # as inside a training loop
    trainer.seconds = dict.fromkeys(("rollout", "sampling", "update"), 0.0)
    trainer.model.train()
    return trainer


def rows(trainer):
    """The rows of the first update as TRL's sampler gives them: each task `group_size` times."""
    first = trainer.train_dataset.select(range(trainer.run_config.tasks_per_update))
    return [dict(row) for row in first for _ in range(trainer.num_generations)]


def rows_with_tasks(trainer):
    """Rows for TRL's own method, which does not keep them for the rollout."""
    found = rows(trainer)
    trainer._rows = [r["task"] for r in found]
    return found
