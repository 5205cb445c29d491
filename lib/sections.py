"""The paper's sections and the notebooks that rerun them."""

from __future__ import annotations

from typing import NamedTuple

from lib.analyses.claims import claims_of
from lib.config import Experiment
from lib.profiles import experiments


class Section(NamedTuple):
    """A notebook: the paper's section, the claims it decides, and the environment it is about ("": all)."""

    paper: str
    claims: tuple[str, ...] = ()
    env: str = ""


SECTIONS: dict[str, Section] = {
    "00_base_policies": Section(""),
    "01_pass_kt": Section("§2.2"),
    "02_breadth": Section("§3.1", ("C1",)),
    "03_depth": Section("§3.2", ("C2",)),
    "04_step_quality": Section("§3.3", ("C3a", "C3b", "C3c", "C3d")),
    "05_likelihood": Section("§4.1", ("C4a", "C4b")),
    "06_training_dynamics": Section("§4.2", ("C5",)),
    "07_process_supervision": Section("§5.1", ("C6a", "C6b")),
    "08_budgetmix": Section("§5.2–5.4", ("C7", "C7-parity")),
    "09_terminal_bench": Section("appendix", ("C1", "C2", "C7", "C7-parity"), "terminal"),
    "10_claims": Section(""),
}
LAST = "10_claims"  # reads what the others leave


def applicable(profile: str) -> list[str]:
    """The notebooks that a profile has something to show in. Raises ValueError for an unknown profile."""
    xs = experiments(profile)

    def speaks(s: Section, x: Experiment) -> bool:
        return s.env in ("", x.env) and (not s.claims or bool(set(s.claims) & set(claims_of(x))))

    return [name for name, s in SECTIONS.items() if any(speaks(s, x) for x in xs)]
