"""The published recipes of BERT-large and of ResNet-50 on ImageNet, in one table with sources."""

from collections.abc import Callable
from typing import Any, overload

from tf_lamb.core import checks
from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe
from tf_lamb.core.recipes.scaling import epochs_line, epochs_to_steps, fit_steps, scale_by_rule

IMAGENET = 1281167  # images in the training set of ImageNet-1k


def _by_scaling_rule(name, fields, baseline, batch_size) -> Recipe:
    """Makes a recipe by a rule of `scale` for a batch size.

    Args:
        name: The name of the recipe, which is not used.
        fields: Fields of the `Recipe`.
        baseline: The arguments of `scale_by_rule`, without the batch size.
        batch_size: The batch size, in examples.
    """
    rule, count_steps, *numbers = baseline
    return scale_by_rule(rule, count_steps, batch_size, *numbers, **fields)


def _row_of_batch(name, rows, batch_size) -> tuple:
    """Returns (batch size, *its row); raises `ValueError` if the table has no row for it.

    Args:
        name: The name of the recipe, for the error.
        rows: Batch size -> row, a tuple of numbers.
        batch_size: The batch size, in examples.
    """
    if (batch := checks.integer("batch_size", batch_size)) in rows:
        return batch, *rows[batch]
    batches_text = ", ".join(f"{row_batch:,}" for row_batch in rows)
    raise ValueError(f"{name} has no reference point at batch {batch:,}; it has {batches_text}.")


def _lars_recipe(name, fields, rows, batch_size) -> Recipe:
    """Makes a recipe from a row of the table of MLPerf's ResNet-50 with LARS.

    Some of the published decay steps include warmup, others do not. They are taken to include it if
    they last as long as the reference runs took to reach the target accuracy. The printed recipe
    says which is assumed.
    """
    row = _row_of_batch(name, rows, batch_size)
    batch, rate, warmup_epochs, momentum, weight_decay, decay_steps, span, target_epochs = row
    warmup_steps = epochs_to_steps(warmup_epochs, IMAGENET, batch)
    decay_epochs = decay_steps * batch / IMAGENET
    # `target_epochs` is published with one decimal, so it may be too large by 0.05.
    includes_warmup = decay_epochs >= target_epochs - 0.05
    train_steps = decay_steps + (0 if includes_warmup else warmup_steps)
    reading_text = "all of training" if includes_warmup else "what follows warmup"
    return Recipe(
        batch_size=batch, learning_rate=rate, momentum=momentum, weight_decay=weight_decay,
        warmup_steps=warmup_steps, train_steps=train_steps, batch_norm_span=span,
        examples=IMAGENET, epochs=train_steps * batch / IMAGENET, warmup_epochs=warmup_epochs,
        arithmetic=(
            f"learning rate = {rate:g}",
            epochs_line("warmup", warmup_epochs, IMAGENET, batch),
            f"decay steps = {decay_steps:,} = {decay_epochs:.1f} epochs; the target took "
            f"{target_epochs:g}, so {reading_text}",
            f"training = {train_steps:,} steps",
        ),
        **fields,
    )  # fmt: skip


def _bert_recipe(name, fields, rows, batch_size) -> Recipe:
    """Makes a recipe from a row of the table of MLPerf's BERT.

    Some published warmups begin at a step before 0. Training then starts inside the warmup, at a
    rate above 0.
    """
    batch, rate, steps, warmup, start_step, beta_1, beta_2, decay, target_examples = _row_of_batch(
        name, rows, batch_size
    )
    initial_rate, warmup_line = 0.0, f"warmup = {warmup} steps"
    if warmup and start_step:
        initial_rate = rate * -start_step / warmup
        warmup_line += (
            f" from step {start_step}, so {warmup + start_step} from step 0, where the rate is "
            f"{rate:g} x {-start_step} / {warmup} = {initial_rate:.4g}"
        )
    overrides = {
        "batch_size": batch, "learning_rate": rate, "initial_learning_rate": initial_rate,
        "warmup_steps": warmup + start_step if warmup else 0, "train_steps": steps,
        "beta_1": beta_1, "beta_2": beta_2, "weight_decay": decay,
        "arithmetic": (
            f"learning rate = {rate:g}", f"training = {steps:,} steps", warmup_line,
            f"the target took {target_examples:,} examples",
        ),
    }  # fmt: skip
    return Recipe(**{**fields, **overrides})


def _staged_recipe(name, fields, rows, batch_size) -> StagedRecipe:
    """Makes a recipe whose stages have the numbers in the rows of a table, one row for each stage.

    `fields` are the fields that all stages share. Raises `ValueError` if `batch_size` is not None,
    because each stage has its own.
    """
    if batch_size is not None:
        raise ValueError(f"{name} has batches of its own: leave out batch_size={batch_size!r}.")
    stages = tuple(
        Recipe(
            batch_size=batch, sequence_length=length, learning_rate=rate, warmup_steps=warmup,
            train_steps=steps,
            arithmetic=(
                f"learning rate = {rate:g}", f"training = {steps:,} steps",
                f"warmup = {warmup:,} steps", calculation,
            ),
            **{**fields, "title": f"{fields['title']}, stage {number}"},
        )
        for number, (batch, length, rate, warmup, steps, calculation) in enumerate(rows, 1)
    )  # fmt: skip
    return StagedRecipe(title=fields["title"], stages=stages, source=fields["source"])


_LAMB = {
    "optimizer": "LAMB", "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6, "global_clipnorm": 1.0,
    "exclude_from_weight_decay": ("norm_and_bias",),
}  # fmt: skip
_LARS = {
    "optimizer": "LARS", "power": 2.0, "trust_coefficient": 0.001,
    "exclude_from_weight_decay": ("norm_and_bias",),
}  # fmt: skip
_BERT = {**_LAMB, "model": "BERT", "weight_decay": 0.01, "handover": "drop"}
_RESNET50 = {"model": "ResNet-50", "label_smoothing": 0.1}
_NVIDIA = "NVIDIA DeepLearningExamples, PyTorch/LanguageModeling/BERT"

# Recipe name -> (the function that makes a recipe from the rows, the fields of `Recipe` that all
# rows share, the rows). `_by_scaling_rule` takes the arguments of `scale_by_rule` in place of rows.
TABLE: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    # The baseline has 1,000,000 steps at batch 512, and 1/320 of them are warmup: 3,125 steps. LEGW
    # keeps the number of warmup steps at every batch.
    "untuned_lamb_bert": (
        _by_scaling_rule,
        {
            **_BERT, "title": "Untuned LAMB for BERT-large",
            "source": "You et al., arXiv 1904.00962, the BERT table of untuned LAMB",
            # The paper gives lengths in steps, so the recipe gives none in epochs.
            "examples": None, "epochs": None, "warmup_epochs": None,
        },
        ("legw", epochs_to_steps, 512, 6.25e-4, 1 / 320, 512_000_000, 1),
    ),
    # Code: github.com/fastalgo/imagenet_resnet50_lamb, github.com/NUS-HPC-AI-Lab/pytorch-lamb.
    # Unlike this recipe, the first author's own run at batch 32,768 (76.3% top-1) applies weight
    # decay and a trust ratio to the bias of the last layer.
    "untuned_lamb_resnet50": (
        _by_scaling_rule,
        {
            **_RESNET50, **_LAMB, "title": "Untuned LAMB for ResNet-50", "weight_decay": 1.5,
            "source": "You et al., arXiv 1904.00962, the ResNet-50 table of untuned LAMB",
        },
        ("legw", epochs_to_steps, 512, 0.005, 0.3125, IMAGENET, 90),
    ),
    # The paper's baseline at batch 1,024 has a rate of 2^2.5 and a warmup of 10/2^5 epochs. At 512,
    # LEGW turns this into 2^2 and 10/2^6. The public code reached a top-1 accuracy of 76.95,
    # 77.06, 77.38 and 77.14% at batches of 512, 1,024, 4,096 and 8,192.
    "legw_resnet50_lars": (
        _by_scaling_rule,
        {
            **_RESNET50, **_LARS, "title": "LEGW for ResNet-50", "weight_decay": 1e-4,
            "momentum": 0.9, "epsilon": 1e-5,
            "source": "You et al., arXiv 1901.08256 (LEGW); NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch",
        },
        ("legw", epochs_to_steps, 512, 4.0, 10 / 2**6, IMAGENET, 90),
    ),
    # The scale and shift of batch normalization have no weight decay. At every batch size, batch
    # normalization computes mean and variance over 32 examples.
    "linear_resnet50_sgd": (
        _by_scaling_rule,
        {
            "title": "Linear scaling for ResNet-50", "model": "ResNet-50", "momentum": 0.9,
            "nesterov": True, "weight_decay": 1e-4, "batch_norm_span": 32,
            "exclude_from_weight_decay": ("batch_normalization|_bn/",),
        },
        ("linear", fit_steps, 256, 0.1, 5, IMAGENET, 90, (30, 60, 80)),
    ),
    # From the repository mlcommons/logging, the later of two versions of rcps_resnet.json in
    # mlperf_logging/rcp_checker.
    "mlperf_lars": (
        _lars_recipe,
        {
            **_LARS, "title": "MLPerf ResNet-50", "model": "ResNet-50", "epsilon": 0.0,
            "end_learning_rate": 1e-4,
            "source": "mlcommons/logging, reference convergence points of ResNet, v1.0 to v4.0",
        },
        {  # rate, warmup epochs, momentum, weight decay, decay steps, BN span, epochs to target
            1632: (7.4, 2, 0.9, 5e-5, 27476, 204, 35.0),
            2048: (8.5, 5, 0.9, 2e-3, 22530, 64, 38.4),
            3264: (10.5, 2, 0.9, 5e-5, 14523, 204, 35.2),
            4096: (10.0, 5, 0.9, 2e-4, 13137, 64, 40.0),
            8192: (17.0, 5, 0.9, 2e-4, 6095, 64, 42.0),
            13056: (12.8, 9, 0.9, 2.5e-5, 4710, 204, 45.4),
            32768: (21.2, 16, 0.94, 2.5e-5, 2267, 128, 56.0),
            49152: (19.405, 24, 0.951807, 1e-4, 1846, 256, 68.0),
            58880: (23.246, 29, 0.951807, 1e-4, 1785, 230, 79.9),
            64480: (26.0, 31, 0.951807, 1e-4, 1788, 155, 86.1),  # steps from 90 epochs
            65536: (24.699, 31, 0.951807, 1e-4, 1133, 128, 84.5),
            67840: (24.699, 31, 0.951807, 1e-4, 1133, 424, 85.86),
        },
    ),
    # From rcps_bert.json in mlcommons/logging, and retired_benchmarks/bert in mlcommons/training.
    "mlperf_lamb_bert": (
        _bert_recipe,
        {
            **_BERT, "title": "MLPerf BERT-large, from its checkpoint",
            "source": "mlcommons/logging, reference convergence points of BERT, v1.0 to v5.1",
        },
        {  # rate, steps, warmup, start, beta_1, beta_2, weight decay, examples to the target
            256: (3.5e-4, 13700, 0, 0, 0.9, 0.999, 0.01, 2_553_000),
            448: (4.25e-4, 6700, 0, 0, 0.9, 0.999, 0.01, 2_411_000),
            1536: (2e-3, 2254, 0, 0, 0.66, 0.996, 0.01, 2_778_000),
            3072: (2e-3, 1141, 100, 0, 0.66, 0.998, 0.01, 2_768_000),
            4096: (2.4e-3, 855, 0, 0, 0.66, 0.998, 0.01, 2_843_000),
            4608: (3.5e-3, 700, 0, 0, 0.62, 0.9, 0.01, 2_795_000),
            6144: (2.9293e-3, 700, 0, -700, 0.7206, 0.78921, 0.001, 3_321_000),
            6912: (2.9293e-3, 700, 0, -700, 0.7206, 0.78921, 0.001, 3_596_000),
            8192: (2.88293e-3, 600, 287, -76, 0.88, 0.88, 0.0166629, 4_191_000),
            8704: (2.971656e-3, 600, 287, -76, 0.88, 0.88, 0.0166629, 4_278_000),
            12288: (3.1e-3, 500, 300, -100, 0.8, 0.925, 0.0166629, 4_470_000),
            13056: (3.19540686e-3, 500, 300, -100, 0.8, 0.925, 0.0166629, 4_633_000),
            16384: (3.3e-3, 600, 290, -100, 0.75, 0.9, 0.0166629, 5_504_000),
        },
    ),
    # The paper gives 8,599 steps in all, and 1,562 for stage 2 (in its run of 15,625 steps, which
    # are 14,063 + 1,562). That leaves 7,037 for stage 1, six more than 9/10 of the examples take;
    # the paper does not explain them. It does not give the learning rates of this run.
    "bert_mixed_batch": (
        _staged_recipe,
        {
            **_BERT, "title": "Mixed-batch BERT-large",
            "source": "You et al., arXiv 1904.00962, mixed-batch BERT; rate and warmup from "
            + _NVIDIA,
        },
        [  # batch, sequence length, rate, warmup, steps
            (
                65536, 128, 6e-3, 2000, 7037,
                "7,037 = 8,599 published in all - 1,562; 0.9 x 1,000,000 x 512 / 65,536 = 7,031.2",
            ),
            (32768, 512, 4e-3, 200, 1562, "as published; 0.1 x 1,000,000 x 512 / 32,768 = 1,562.5"),
        ],
    ),
    # Warmup is published as a share of training. Stage 2 starts with the moments from stage 1 and
    # with the optimizer's step at 0. NVIDIA's TensorFlow code has other batches, and gives every
    # variable a trust ratio.
    "nvidia_bert": (
        _staged_recipe,
        {**_BERT, "title": "NVIDIA BERT-large", "power": 0.5, "source": _NVIDIA},
        [
            (65536, 128, 6e-3, 2000, 7038, "that is 0.2843 x 7,038 = 2,000.9, rounded down"),
            (32768, 512, 4e-3, 200, 1563, "that is 0.128 x 1,563 = 200.1, rounded down"),
        ],
    ),
}  # fmt: skip
# The names of the recipes in stages, for which the user passes no batch size.
STAGED_NAMES = tuple(name for name, (make, *_) in TABLE.items() if make is _staged_recipe)


@overload
def published(name: str) -> StagedRecipe: ...
@overload
def published(name: str, batch_size: int) -> Recipe: ...
def published(name: str, batch_size: int | None = None) -> Recipe | StagedRecipe:
    """Returns a published recipe of BERT-large, or of ResNet-50 on ImageNet.

        name                     batches           rate and warmup
        "untuned_lamb_bert"      512 to 32,768     0.005 sqrt(batch_size / 32768), 3,125 steps
        "untuned_lamb_resnet50"  512 to 32,768     0.04 sqrt(batch_size / 32768), 782 steps
        "legw_resnet50_lars"     512 to 32,768     32 sqrt(batch_size / 32768), 391 steps
        "linear_resnet50_sgd"    256 to 8,192      0.1 batch_size / 256, 5 epochs
        "mlperf_lars"            1,632 to 67,840   a table of 12 batches, to 75.9% top-1
        "mlperf_lamb_bert"       256 to 16,384     a table of 13 batches, to 72% masked-LM accuracy
        "bert_mixed_batch"       65,536 + 32,768   in 8,599 steps: 7,037 at 128 tokens, 1,562 at 512
        "nvidia_bert"            65,536 + 32,768   in 8,601 steps: 7,038 at 128 tokens, 1,563 at 512

    The first four follow a rule of `scale` at any batch size, and warn at batch sizes outside of
    the column "batches". They train for 512,000,000 sequences (BERT) or 90 epochs (ResNet-50); for
    other data, call `scale` with the numbers of the baseline. A printed recipe names its source.
    No recipe was run at these batch sizes with this package.

    - The decay of BERT counts from step 0, as in the authors' code: the rate drops when warmup
      ends. 9/10 of the examples are sequences of 128 tokens, and the rest are of 512.
    - Untuned LAMB for ResNet-50 has a weight decay of 1.5. It can be so large because the trust
      ratio sets the length of the update.
    - MLPerf's decay steps for ResNet-50 sometimes include warmup. They are taken as all steps of
      training, unless training would then be shorter than the mean number of epochs in which the
      reference runs reached the target.
    - MLPerf's BERT starts from MLPerf's checkpoint, not from random weights. If the published
      warmup starts before step 0, training starts inside it: for a start at -76 of a warmup of 287
      steps, at 76/287 of the peak.
    - "bert_mixed_batch" has the linear decay of the paper, but the peak rates and warmups of
      "nvidia_bert", because those of the paper are not published. In "nvidia_bert" the rate falls
      with the square root of the remaining steps.

    Args:
        name: A name in the table.
        batch_size: The batch size, in examples. Defaults to None. A recipe in stages needs None,
            because it has batch sizes of its own.

    Returns:
        A `Recipe`, or a `StagedRecipe` for the last two names.

    Raises:
        TypeError: if the batch size is not an integer.
        ValueError: if there is no recipe of this name, if an MLPerf table has no row for the batch
            size (the message lists those that it has), if a recipe in stages gets a batch size, or
            if warmup would be longer than training.

    Example:
        >>> recipe = published("untuned_lamb_bert", 32768)
        >>> recipe.learning_rate, recipe.warmup_steps, recipe.train_steps
        (0.005, 3125, 15625)
        >>> [(stage.batch_size, stage.train_steps) for stage in published("bert_mixed_batch")]
        [(65536, 7037), (32768, 1562)]
    """
    if name not in TABLE:
        raise ValueError(f"There is no recipe {name!r}: name one of {', '.join(TABLE)}.")
    make, fields, rows = TABLE[name]
    return make(name, fields, rows, batch_size)
