"""An environment of your own on one page: guess the secret number, told "higher" or "lower", with exact action values.

Check it:  python -m lib.envs.check lib.envs.example_guess:Guess
Train it:  Experiment(profile="mine", env="lib.envs.example_guess:Guess", env_config=GuessConfig(), ...), lib/stages.py
"""

import json
import random
from dataclasses import dataclass

from lib.envs.base import Env, Step, Task

SPLITS = {"train": (0, 1, 2), "valid": (3,), "test": (4,)}  # a range's low + high modulo 5: no task in two splits


@dataclass(frozen=True)
class GuessConfig:
    highest: int = 30  # a task is a range, 1 <= low < high <= highest; the secret in it is drawn by the episode's seed
    max_turns: int = 5  # Tmax
    show_budget: bool = False  # tell the policy how many turns are left


class Guess(Env):
    name, Config = "guess", GuessConfig

    @classmethod
    def tasks(cls, config, split, n):
        ranges = [(a, b) for b in range(2, config.highest + 1) for a in range(1, b)]
        random.Random(0).shuffle(ranges)
        if split not in SPLITS or not 1 <= n <= len(found := [r for r in ranges if sum(r) % 5 in SPLITS[split]]):
            raise ValueError(f"{n} {split!r} tasks: a split of {', '.join(SPLITS)}, and more need a larger highest")
        return tuple(Task(f"guess-{a}-{b}", {"range": [a, b]}) for a, b in found[:n])

    @classmethod
    def demonstrator(cls, config, task, seed):
        rng = random.Random(seed)
        noise = rng.random()  # its share of random guesses; the others halve what is left
        return lambda env: str(rng.randint(*task.data["range"]) if rng.random() < noise else (env.low + env.high) // 2)

    def reset(self, task, seed, budget=None):
        self.low, self.high = task.data["range"]  # what the answers so far leave possible
        self.left = self.config.max_turns if budget is None else budget
        self.reseed(seed)
        return [{"role": "user", "content": "Guess the number. " + self._say("It is")}]

    def step(self, action):
        guess, self.left = self._number(action), self.left - 1
        if guess == self.secret:
            return Step("", 1.0, True, {"solved": True, "invalid": False})
        word = "Reply with one number," if guess is None else "higher," if guess < self.secret else "lower,"
        self.low = max(self.low, guess + 1) if word == "higher," else self.low
        self.high = min(self.high, guess - 1) if word == "lower," else self.high
        return Step(self._say(word), 0.0, False, {"solved": False, "invalid": guess is None})

    def snapshot(self):
        return json.dumps([self.low, self.high, self.left, self.secret]).encode()

    def restore(self, blob):
        self.low, self.high, self.left, self.secret = json.loads(blob)

    def reseed(self, seed):  # another secret that fits the answers so far
        self.secret = random.Random(seed).randint(self.low, self.high)

    def state_key(self):
        return self.low, self.high

    def step_quality(self, action):  # with k questions left, 2^k - 1 numbers can be told apart
        guess, n, told = self._number(action), self.high - self.low + 1, 2 ** (self.left - 1) - 1
        if guess is None or not self.low <= guess <= self.high:
            return min(1.0, told / n)
        return (1 + min(guess - self.low, told) + min(self.high - guess, told)) / n

    def value(self):
        return min(1.0, (2**self.left - 1) / (self.high - self.low + 1))

    def _number(self, action):
        return int(text) if (text := action.strip()).isdecimal() and len(text) < 5 else None

    def _say(self, word):
        return f"{word} {self.low} to {self.high}." + f" You have {self.left} turns left." * self.config.show_budget
