"""Reports the memory and the minimum time of a training step on a TPU, without a TPU.

The TPU's compiler, which also runs on a CPU, compiles the step. `preflight` reports on a model of
Keras 3 on JAX. `tf_lamb_extras.preflight.model_garden` is a command that reports on an experiment
of TensorFlow's Model Garden.
"""

from typing import TYPE_CHECKING

from tf_lamb_extras import lazily

__all__ = ["preflight"]

if TYPE_CHECKING:
    from tf_lamb_extras.preflight.model import preflight
else:
    __getattr__ = lazily(__name__, preflight="model")
