"""Lowers the training step of a Model Garden experiment to programs that a TPU compiler takes.

The step is not run. This file uses two functions that are not public API:
`experimental_get_compiler_ir` of a compiled `tf.function` in TensorFlow 2.20, which takes tensors
as arguments and captures variables, and `_create_all_weights` of the legacy optimizers in Model
Garden 2.20.
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
    """Builds the model, task, optimizer and schedule of an experiment, and lowers its steps.

    Args:
        params: The experiment's config.

    Attributes:
        weights: The bytes of the model's variables.
        gradients: The bytes of the gradients.
        slots: The bytes of all the optimizer's variables.
    """

    def __init__(self, params):
        self._params = params
        with _precision(params.runtime.mixed_precision_dtype):
            self._build(params)

    def _build(self, params):
        """Builds task, model, optimizer and metrics, and sets the bytes of their variables.

        `slots` counts all variables of the optimizer, also its scalars. Raises UserError if a part
        cannot be built.
        """
        with tempfile.TemporaryDirectory() as folder, _building("the model"):
            self._task = task_factory.get_task(params.task, logging_dir=folder)
            self._model = self._task.build_model()
        with _building("the optimizer"):
            config = params.trainer.optimizer_config
            self._optimizer = self._task.create_optimizer(config, params.runtime)
            weights = self._model.trainable_variables
            legacy = not hasattr(self._optimizer, "build")
            (self._optimizer._create_all_weights if legacy else self._optimizer.build)(weights)
        with _building("the metrics"):
            self._metrics = self._task.build_metrics(training=True)
        slots = self._optimizer.variables
        self.slots = _bytes(slots() if callable(slots) else slots)
        self.weights, self.gradients = _bytes(self._model.variables), _bytes(weights)

    def step(self, examples: int, stage: str = "hlo_serialized") -> bytes:
        """Returns the program of the training step of one replica: with the default stage, as HLO.

        Args:
            examples: The examples of the replica's batch.
            stage: The stage and form of the program, as `experimental_get_compiler_ir` names it.
                Defaults to "hlo_serialized", which is the input of XLA.
        """

        @tf.function(jit_compile=True)
        def step(inputs):
            return self._task.train_step(
                inputs, model=self._model, optimizer=self._optimizer, metrics=self._metrics
            )

        inputs = tf.nest.map_structure(_zeros, self._batch(examples))
        return hlo(step, inputs, stage=stage)

    def update(self) -> bytes:
        """Returns the update of the optimizer, apart from the step, as a serialized HLO program."""
        weights = self._model.trainable_variables

        @tf.function(jit_compile=True)
        def update(gradients):
            self._optimizer.apply_gradients(zip(gradients, weights, strict=True))

        return hlo(update, [tf.zeros(w.shape, w.dtype) for w in weights])

    def _batch(self, examples):
        """Returns the shapes and dtypes of a replica's batch, as `tf.TensorSpec`s.

        They are those of the task's input pipeline, which reads an empty file here.

        Args:
            examples: The examples of the batch.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "empty.tfrecord")
            tf.io.TFRecordWriter(path).close()
            data = self._params.task.train_data.replace(
                input_path=path, tfds_name="", global_batch_size=examples, is_training=True
            )
            with _building("the data"):
                return self._task.build_inputs(data).element_spec


def _zeros(spec):
    """Returns zeros with the shape and dtype of a spec; raises UserError if a length is unknown."""
    if not spec.shape.is_fully_defined():
        raise UserError(
            f"the step cannot be compiled: a feature of the data has the shape {spec.shape}, and a "
            "TPU needs every length. Set task.train_data.drop_remainder=true and fixed lengths"
        )
    return tf.zeros(spec.shape, spec.dtype)


def hlo(function, *arguments, stage="hlo_serialized") -> bytes:
    """Returns the XLA program of a `tf.function`, as it is traced for a TPU; the HLO by default.

    Args:
        function: A `tf.function` with `jit_compile=True`.
        arguments: The function's arguments, tensors.
        stage: The stage and form of the program, as `experimental_get_compiler_ir` names it.
            Defaults to "hlo_serialized", which is the input of XLA.

    Raises:
        UserError: If XLA cannot compile the function for a TPU.
    """
    with namespace.tracing_for_tpu():
        try:
            return function.experimental_get_compiler_ir(*arguments)(stage=stage)
        except (tf.errors.OpError, ValueError) as error:
            raise UserError(f"XLA takes this step for no TPU: {_reason(str(error))}") from error


def _reason(message):
    """Returns the operations that XLA does not support, and their layers, from an error message.

    If the message names none, its first line is returned.
    """
    operations = re.findall(r"(\w+) \(No registered.*?\{\{node ([^}]*)\}\}", message, re.DOTALL)
    if operations:
        return ", ".join(sorted({f"{operation} of {layer}" for operation, layer in operations}))
    return message.splitlines()[0][:600]


def _bytes(variables):
    """Returns the bytes that variables take together."""
    return sum(v.shape.num_elements() * v.dtype.size for v in variables)


@contextlib.contextmanager
def _precision(dtype):
    """Sets Model Garden's precision policy in the context, and restores the former one at its end.

    Args:
        dtype: The name of the policy; None or "" leaves the policy as it is.
    """
    policy = tf_keras.mixed_precision.global_policy()
    try:
        if dtype:
            performance.set_mixed_precision_policy(dtype)
        yield
    finally:
        tf_keras.mixed_precision.set_global_policy(policy)


def _building(part):
    """Returns a context manager that turns every error into a UserError.

    Args:
        part: The part of the experiment that is built in the context, such as "the model".
    """
    return named(f"{part} of this experiment cannot be built", Exception)
