"""From the batch at which an experiment was tuned to another: what `--global_batch_size` fills in.

The whole curve of the learning rate is multiplied by one factor and stretched over the new number
of steps; warmup has a length of its own. What is in an experiment's config needs no other name.
"""

from fractions import Fraction

from tf_lamb.core import recipes
from tf_lamb.core.recipes.arithmetic import nearest, whole
from tf_lamb.model_garden.experiments.recipes import PUBLISHED, intervals, published

SCALING = {"legw": recipes.legw, "sqrt_scaling": recipes.sqrt_scaling}
RECIPES = (*SCALING, *PUBLISHED)
DEFAULT = "legw"

_RATES = {
    "learning_rate", "initial_learning_rate", "end_learning_rate", "learning_rates", "values",
    "start", "warmup_learning_rate",
}  # fmt: skip
_STEPS = {"steps", "decay_steps", "boundaries", "offset"}
_SCHEDULES = ("constant", "stepwise", "polynomial", "cosine", "exponential")


def fill_in(name: str, batch_size: int, params) -> tuple[str, dict]:
    """What a recipe makes of an experiment at this batch: its arithmetic, and the settings.

    Raises:
        ValueError: where there is no such recipe for this model, schedule or batch, or warmup
            would be longer than training.
    """
    text, settings = (published if name in PUBLISHED else _scaled)(name, batch_size, params)
    settings["trainer"].update(intervals(params.trainer, settings["trainer"]["train_steps"]))
    return text, settings


def _peak(rate) -> float:
    """The largest rate of a schedule."""
    if rate.type not in _SCHEDULES and not str(rate.type).startswith("tf_lamb_"):
        raise ValueError(
            f"--global_batch_size cannot scale learning_rate.type={rate.type}, only "
            f"{', '.join(_SCHEDULES)} and those of tf_lamb. Write what this batch needs into a YAML"
        )
    rates = [v for k, v in rate.get().as_dict().items() if k in _RATES and v is not None]
    if not rates:
        raise ValueError(
            f"trainer.optimizer_config.learning_rate.{rate.type} names no rate to scale"
        )
    return max(max(r) if isinstance(r, list) else r for r in rates)


def _scaled(name: str, batch_size: int, params) -> tuple[str, dict]:
    # What the experiment says of the batch at which it was tuned.
    tuned, train_steps = params.task.train_data.global_batch_size, params.trainer.train_steps
    rate, config = params.trainer.optimizer_config.learning_rate, params.trainer.optimizer_config
    peak, warmup = _peak(rate), config.warmup.get()
    length = "steps" if config.warmup.type == "tf_lamb" else "warmup_steps"
    warmup_steps = getattr(warmup, length, None) or 0

    k = Fraction(whole("batch_size", batch_size), tuned)
    steps = nearest(train_steps / k)
    if not steps:
        raise ValueError(
            f"nothing would be trained: {train_steps:,} steps x {tuned:,} / {batch_size:,} = "
            f"{float(train_steps / k):.3g} steps. Take a smaller batch"
        )
    examples = steps * batch_size  # Model Garden's data begin again without regard to epochs
    share = warmup_steps * tuned / examples
    recipe = SCALING[name](batch_size, tuned, peak, share, examples, epochs=1)

    factor = recipe.learning_rate / peak
    # Decay may end so many steps after warmup. An exponential one has a period, and no end.
    ours = config.warmup.type == "tf_lamb" and warmup.handover == "continuous"
    after_warmup = ours and "exponential" not in rate.type
    before, after = (warmup_steps, recipe.warmup_steps) if after_warmup else (0, 0)

    def scale(key, value):
        if isinstance(value, list):
            return [scale(key, each) for each in value]
        if value and key in _STEPS:
            return max(nearest((value + before) / k) - after, 1)
        return value * factor if value and key in _RATES else value

    found = {"learning_rate": {rate.type: _each(scale, rate.get())}}
    if warmup_steps:
        new = {**_each(scale, warmup), length: recipe.warmup_steps}
        found["warmup"] = {config.warmup.type: new}
    text = "\n  ".join([
        f"{recipe.title} from batch {tuned:,}, at which this experiment was tuned, to "
        f"{batch_size:,}",
        *recipe.arithmetic,
        f"source: {recipe.source}",
    ])  # fmt: skip
    return text, {
        "task": {"train_data": {"global_batch_size": batch_size}},
        "trainer": {"train_steps": recipe.train_steps, "optimizer_config": found},
    }


def _each(scale, config) -> dict:
    return {key: scale(key, value) for key, value in config.as_dict().items()}
