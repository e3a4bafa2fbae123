"""An experiment's training step as programs that a TPU compiler takes; nothing of it runs.

Seams into TensorFlow (2.20): `experimental_get_compiler_ir` of a compiled `tf.function`, which
takes tensors as arguments and captures variables; and Model Garden (2.20): the legacy optimizers'
`_create_all_weights`.
"""

import contextlib
import os
import re
import tempfile

import tensorflow as tf
import tf_keras
from official.core import task_factory
from official.modeling import performance

from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.tensorflow import namespace


class Steps:
    """The steps of one experiment: its own model, task, optimizer and schedule, as training has.

    `weights`, `gradients` and `slots` are bytes; slots are all that the optimizer keeps.
    """

    def __init__(self, params):
        self._params = params
        with _precision(params.runtime.mixed_precision_dtype):
            self._build(params)

    def _build(self, params):
        with tempfile.TemporaryDirectory() as nothing, _building("the model"):
            self._task = task_factory.get_task(params.task, logging_dir=nothing)
            self._model = self._task.build_model()
        with _building("the optimizer"):
            config = params.trainer.optimizer_config
            self._optimizer = self._task.create_optimizer(config, params.runtime)
            weights = self._model.trainable_variables
            legacy = not hasattr(self._optimizer, "build")
            (self._optimizer._create_all_weights if legacy else self._optimizer.build)(weights)
        self._metrics = self._task.build_metrics(training=True)
        kept = self._optimizer.variables
        self.slots = _bytes(kept() if callable(kept) else kept)
        self.weights, self.gradients = _bytes(self._model.variables), _bytes(weights)

    def step(self, examples: int, stage: str = "hlo_serialized") -> bytes:
        """A replica's step at this many examples, as a serialized HLO program; see `hlo`."""

        @tf.function(jit_compile=True)
        def step(inputs):
            return self._task.train_step(
                inputs, model=self._model, optimizer=self._optimizer, metrics=self._metrics
            )

        inputs = tf.nest.map_structure(_zeros, self._batch(examples))
        return hlo(step, inputs, stage=stage)

    def update(self) -> bytes:
        """The optimizer's update alone."""
        weights = self._model.trainable_variables

        @tf.function(jit_compile=True)
        def update(gradients):
            self._optimizer.apply_gradients(zip(gradients, weights, strict=True))

        return hlo(update, [tf.zeros(w.shape, w.dtype) for w in weights])

    def _batch(self, examples):
        """The batch that the task's pipeline gives a replica; it opens no file of the user's."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "empty.tfrecord")
            tf.io.TFRecordWriter(path).close()
            data = self._params.task.train_data.replace(
                input_path=path, tfds_name="", global_batch_size=examples, is_training=True
            )
            with _building("the data"):
                return self._task.build_inputs(data).element_spec


def _zeros(spec):
    if not spec.shape.is_fully_defined():
        raise UserError(
            f"the step cannot be compiled: a feature of the data has the shape {spec.shape}, and a "
            "TPU needs every length. Set task.train_data.drop_remainder=true and fixed lengths"
        )
    return tf.zeros(spec.shape, spec.dtype)


def hlo(function, *arguments, stage="hlo_serialized") -> bytes:
    """XLA's input for a compiled `tf.function`, traced for a TPU, or its result."""
    with namespace.tracing_for_tpu():
        try:
            return function.experimental_get_compiler_ir(*arguments)(stage=stage)
        except (tf.errors.OpError, ValueError) as error:
            raise UserError(f"XLA takes this step for no TPU: {_reason(str(error))}") from error


def _reason(message):
    """The operations that XLA has no program for, with the layers that they came from."""
    found = re.findall(r"(\w+) \(No registered.*?\{\{node ([^}]*)\}\}", message, re.DOTALL)
    if found:
        return ", ".join(sorted({f"{operation} of {layer}" for operation, layer in found}))
    return message.splitlines()[0][:600]


def _bytes(variables):
    return sum(v.shape.num_elements() * v.dtype.size for v in variables)


@contextlib.contextmanager
def _precision(dtype):
    before = tf_keras.mixed_precision.global_policy()
    try:
        if dtype:
            performance.set_mixed_precision_policy(dtype)
        yield
    finally:
        tf_keras.mixed_precision.set_global_policy(before)


def _building(part):
    return named(f"{part} of this experiment cannot be built", Exception)
