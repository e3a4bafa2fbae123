"""Recipes: pure functions from a batch size to plain numbers.

Each returns a frozen `Recipe` (or, for training in stages, a `StagedRecipe`), which prints its own
calculation. The rules for your own baseline count steps as `fit` does. Published recipes are
rounded to the nearest integer step, halves up, unless the source gives the integer itself.
"""

from tf_lamb.core.recipes.growing import growing
from tf_lamb.core.recipes.published import (
    bert_mixed_batch,
    legw_resnet50_lars,
    nvidia_bert,
    published_time,
    untuned_lamb_bert,
    untuned_lamb_resnet50,
)
from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe, arguments, schedule
from tf_lamb.core.recipes.reference import mlperf_lamb_bert, mlperf_lars
from tf_lamb.core.recipes.scaling import legw, linear_scaling, sqrt_scaling
from tf_lamb.core.recipes.transfer import transfer

__all__ = [
    "Recipe", "StagedRecipe", "arguments", "bert_mixed_batch", "growing", "legw",
    "legw_resnet50_lars", "linear_scaling", "mlperf_lamb_bert", "mlperf_lars", "nvidia_bert",
    "published_time", "schedule", "sqrt_scaling", "transfer", "untuned_lamb_bert",
    "untuned_lamb_resnet50",
]  # fmt: skip
