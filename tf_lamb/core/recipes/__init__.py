"""Recipes: pure functions from a batch size to plain numbers.

Each returns a frozen `Recipe` (or, for training in stages, a `StagedRecipe`), which prints its own
calculation. Recipes from your own baseline count steps as `fit` does. Published recipes are rounded
to the nearest integer step, halves up, unless the source gives the integer itself.
"""

from tf_lamb.core.recipes.growing import growing
from tf_lamb.core.recipes.largest import largest_batch
from tf_lamb.core.recipes.published import published
from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe
from tf_lamb.core.recipes.scaling import scale
from tf_lamb.core.recipes.transfer import transfer

__all__ = ["Recipe", "StagedRecipe", "growing", "largest_batch", "published", "scale", "transfer"]
