"""Recipes: functions that compute learning rate, warmup and steps for a batch size.

`published`, `scale` and `transfer` return a frozen `Recipe`, which prints its own calculation. For
training in stages, `growing` and `published` return a `StagedRecipe`. `scale` and `transfer` count
the steps of training as Keras's `fit` does. `published` takes the number of steps from the source;
if the source gives epochs, it rounds epochs x examples / batch to the nearest step, halves up, or
counts as `fit` (for linear scaling).
"""

from tf_lamb.core.recipes.growing import growing
from tf_lamb.core.recipes.largest import largest_batch
from tf_lamb.core.recipes.published import published
from tf_lamb.core.recipes.recipe import Recipe, StagedRecipe
from tf_lamb.core.recipes.scaling import scale
from tf_lamb.core.recipes.transfer import transfer

__all__ = ["Recipe", "StagedRecipe", "growing", "largest_batch", "published", "scale", "transfer"]
