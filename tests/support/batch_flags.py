"""The flags of `tf_lamb.model_garden.train` that say what is trained."""

import dataclasses

from official.core import train_utils


@dataclasses.dataclass
class Flags(train_utils.ParseConfigOptions):
    """As the command reads them."""

    experiment: str = "lamb/bert_pretraining"
    config_file: list = dataclasses.field(default_factory=list)
    global_batch_size: int | None = None
    recipe: str | None = None
    per_replica_batch_size: int | None = None
