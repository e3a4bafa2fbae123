"""The frozen numbers of docs/protocol_ladder.md, their hash, and what a run is known by."""

import dataclasses
import hashlib
import json
import os
import pathlib

from benchmarks.updates_left import protocol as updates_left
from benchmarks.updates_left.protocol import Settings

# The rehearsal has numbers of its own: LADDER=rehearsal.json.
_FILE = pathlib.Path(__file__).with_name(os.environ.get("LADDER", "protocol.json"))
FROZEN = json.loads(_FILE.read_text())
HASH = hashlib.sha256(_FILE.read_bytes()).hexdigest()[:12]

# The held-out examples of the letters and the norm at which gradients are clipped are frozen there.
if FROZEN["updates_left_protocol"] != updates_left.HASH:
    raise ValueError(
        f"{_FILE.name} was written for {FROZEN['updates_left_protocol']} of "
        f"benchmarks/updates_left/protocol.json, which is {updates_left.HASH} here."
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """Holds what the log knows one run by.

    Attributes:
        task: What is learned.
        optimizer: A name in the protocol.
        batch_size: Examples of an update.
        updates: Of the whole run.
        learning_rate: At its peak, between warmup and decay.
        seed: Of the weights and of the examples.
    """

    task: str
    optimizer: str
    batch_size: int
    updates: int
    learning_rate: float
    seed: int

    @property
    def line(self) -> dict:
        """What its line in the log begins with."""
        return {"protocol": HASH, **dataclasses.asdict(self)}

    @property
    def examples(self) -> int:
        """How many examples it sees, with those that come again."""
        return self.batch_size * self.updates

    @property
    def settings(self) -> Settings:
        """What is tuned and what is frozen, as the loop takes it."""
        return Settings(
            self.learning_rate, FROZEN["warmup"], FROZEN["weight_decay"], FROZEN["beta_2"]
        )

    @property
    def is_of_search(self) -> bool:
        """Whether it chooses a learning rate, and is not scored."""
        return self.seed == FROZEN["search"]["seed"]


def key(line: dict) -> str:
    """Returns what tells one run from another, of its line."""
    return json.dumps([line[field.name] for field in dataclasses.fields(Run)])


def optimizers_of(task: str) -> list[str]:
    """Returns the names of the optimizers that learn a task, the baseline first."""
    return [
        name for name, about in FROZEN["optimizers"].items()
        if task in about.get("tasks", FROZEN["updates"])
    ]  # fmt: skip


def batches_of(task: str) -> dict[int, int]:
    """Returns batch size -> updates of a run of a task, the smallest batch first."""
    return {int(batch_size): updates for batch_size, updates in FROZEN["updates"][task].items()}
