"""The frozen numbers of docs/updates_left.md, and what is tuned."""

import dataclasses
import hashlib
import json
import math
import os
import pathlib

# The rehearsal has numbers of its own: UPDATES_LEFT=rehearsal.json.
_FILE = pathlib.Path(__file__).with_name(os.environ.get("UPDATES_LEFT", "protocol.json"))
FROZEN = json.loads(_FILE.read_text())
HASH = hashlib.sha256(_FILE.read_bytes()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is tuned at the base batch.

    Attributes:
        rate: The peak learning rate.
        warmup: Its length, as a share of the run.
        weight_decay: As the optimizer takes it.
        beta_2: Of the optimizers that have one.
    """

    rate: float
    warmup: float = FROZEN["search"]["warmup"]
    weight_decay: float = FROZEN["search"]["weight_decay"]
    beta_2: float = FROZEN["beta_2"]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, by what the log knows it.

    Attributes:
        task: What is learned.
        optimizer: Its name.
        length: The examples of the chain that it belongs to, by which its settings were tuned.
        examples: The examples that it sees.
        batch: Examples of an update; of a growing batch, the largest.
        rule: "tuned" settings as they are, "transfer" from the base batch ("transfer from 256" from
            that one), "searched" at this batch, or "growing".
        settings: Those of the base; of a searched run, its own.
        seed: Of the weights and of the order of the examples.
    """

    task: str
    optimizer: str
    length: int
    examples: int
    batch: int
    rule: str
    settings: Settings
    seed: int

    @property
    def line(self) -> dict:
        """What its line in the log begins with."""
        return {"protocol": HASH, **dataclasses.asdict(self)}


def key(line: dict) -> str:
    """Returns what tells one run from another, of its line."""
    names = [field.name for field in dataclasses.fields(Run)]
    return json.dumps([line[name] for name in names], sort_keys=True)


def score_of(task: str) -> str:
    """Returns what a task is judged by: "error", the share of wrong answers, or "loss"."""
    return "error" if task in ("pictures", "digits") else "loss"


def judged(line: dict, part: str, what: str) -> float:
    """Returns a number of a run's line; infinite where training was refused or ended in none.

    Args:
        line: The line.
        part: "validation" or "test".
        what: "loss" or "error".
    """
    value = None if "refused" in line else line[part][what]
    return math.inf if value is None else value
