"""Trains Model Garden's image classification on clean and adversarial images (ConAdv).

Importing this module registers the task and the experiment `lars/resnet_imagenet_conadv` in Model
Garden. To import it in a training command, pass
`--gin_params='import tf_lamb_extras.adversarial.model_garden'`.
"""

import dataclasses

import tensorflow as tf
import tf_keras
from official.core import exp_factory, task_factory
from official.modeling import hyperparams
from official.vision.ops import preprocess_ops

from tf_lamb.api.variables import unwrapped
from tf_lamb.core import checks
from tf_lamb.model_garden import registered, tasks  # noqa: F401  (registers what this builds on)
from tf_lamb.model_garden.common import batches
from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.experiments import named as experiments
from tf_lamb.tensorflow import namespace
from tf_lamb_extras.adversarial import normalization, rules
from tf_lamb_extras.adversarial.normalization import BY_AUXILIARY, Flag
from tf_lamb_extras.adversarial.tf_keras import SplitBatchNormalization

# Is True while a batch consists of clean images followed by their adversarial images.
_DOUBLED = Flag("doubled")


@dataclasses.dataclass
class AdversarialConfig(hyperparams.Config):
    """Holds the settings of the attack; `ConcurrentAdversarial` documents them in full.

    Attributes:
        epsilon: The largest change of a pixel, in pixel units from 0 to 255. Defaults to 9.
        step_size: The size of one step of the attack, in pixel units. Defaults to None: epsilon.
        steps: Steps per attack. Defaults to 1.
        tau: The age of the parameters with which the attack computes gradients, in updates.
            Defaults to 1.
        alpha: The weight of the adversarial loss, in [0, 1]. Defaults to 0.5.
        clean_start: The fraction of images for which the attack starts at the image itself, and not
            at a random point near it. Defaults to 0.2.
    """

    epsilon: float = 9.0
    step_size: float | None = None
    steps: int = 1
    tau: int = 1
    alpha: float = 0.5
    clean_start: float = 0.2


@dataclasses.dataclass
class ConcurrentAdversarialConfig(tasks.ImageClassificationConfig):
    """Holds the settings of `ImageClassificationConfig`, and those of the attack.

    Attributes:
        adversarial: The settings of the attack.
    """

    adversarial: AdversarialConfig = dataclasses.field(default_factory=AdversarialConfig)

    def check_experiment(self, params) -> None:
        """Raises UserError if a setting is invalid, or if the attack does not support it.

        Args:
            params: The config of the experiment.
        """
        _check(params)


@exp_factory.register_config_factory("lars/resnet_imagenet_conadv")
def lars_resnet_imagenet_conadv():
    """Returns the experiment `lars/resnet_imagenet`, with training on adversarial examples."""
    experiment = experiments.lars_resnet_imagenet()
    experiment.task = ConcurrentAdversarialConfig(experiment.task.as_dict())
    return experiment


def _check(params):
    """Raises an error for a setting of the attack out of its range, or one that it cannot support.

    Args:
        params: The config of the experiment.

    Raises:
        UserError: For such a setting.
    """
    task, attack = params.task, params.task.adversarial
    pixels, share = "(0, 255]", "[0, 1]"
    intervals = {"epsilon": pixels, "step_size": pixels, "alpha": share, "clean_start": share}
    with named("task.adversarial"):
        for name, interval in intervals.items():
            if (value := getattr(attack, name)) is not None or name != "step_size":
                checks.number(name, value, interval)
        checks.integer("steps", attack.steps)
        checks.integer("tau", attack.tau, 0)
    if task.model.input_size[-1:] != [3]:
        raise UserError(
            f"task.adversarial attacks pixels of 3 colours, but task.model.input_size is "
            f"{task.model.input_size}. Write [height, width, 3]"
        )
    if task.ghost_batch_size is not None or task.model.norm_activation.use_sync_bn:
        raise UserError(
            "task.adversarial gives clean and adversarial images statistics of their own, within "
            "a replica: set task.ghost_batch_size to null and use_sync_bn to false"
        )
    if task.losses.use_binary_cross_entropy or task.losses.soft_labels:
        raise UserError(
            "task.adversarial needs one label an image: set task.losses.use_binary_cross_entropy "
            "and task.losses.soft_labels to false"
        )
    if attack.tau and batches.micro_batches(params) > 1:
        raise UserError(
            f"task.adversarial.tau={attack.tau} counts updates, of which gradient_accumulation_"
            "steps makes several calls: set it to null, or tau to 0"
        )


@task_factory.register_task_cls(ConcurrentAdversarialConfig)
class ConcurrentAdversarialTask(tasks.ImageClassificationTask):
    """Trains as `ImageClassificationTask`, but on each batch and its adversarial examples.

    The attack uses the parameters of tau steps ago. If tau is above 0, `model.stale.model` is a
    second model that holds them, and `model.stale.line` is a list of the parameters of the later
    steps, oldest first. Both are saved with the model.
    """

    def build_model(self):
        """Builds the model, with split batch normalizations and the parameters of earlier steps."""
        model = self._build_split()
        if tau := self.task_config.adversarial.tau:
            # If the stale model were an attribute of the model, the optimizer would train the
            # variables of the stale model, too. A `Checkpoint` as the attribute hides them.
            model.stale = tf.train.Checkpoint(
                model=self._build_split(),
                line=[_copies(model.trainable_variables) for _ in range(tau - 1)],
            )
            self._begin_line(model)
        return model

    def _build_split(self):
        """Builds the base class's model, with batch normalizations that are split.

        A split one has separate statistics for clean and for adversarial images.
        """
        return normalization.split(super().build_model(), SplitBatchNormalization)

    def initialize(self, model):
        """Initializes the model; see base class.

        The copies of parameters of earlier steps are set to the initialized parameters.
        """
        super().initialize(model)
        self._begin_line(model)

    def _begin_line(self, model):
        """Sets the stored parameters of the last tau steps to the current ones of the model.

        Before the first step, there are no earlier parameters.
        """
        for copies in _line(model):
            for copy, variable in zip(copies, model.trainable_variables, strict=True):
                copy.assign(variable)

    def train_step(self, inputs, model, optimizer, metrics=None):
        """Trains on the batch and its adversarial examples; see base class.

        With tau above 0, it also stores the weights before the step, for later attacks.

        Args:
            inputs: The pair (images, labels). The images are normalized, and have the shape (batch,
                height, width, channels).
            model: The model of `build_model`.
            optimizer: The optimizer.
            metrics: The metrics to update, for the clean images only. Defaults to None.

        Returns:
            The logs of the step, as in the base class.
        """
        features, labels = inputs
        adversarial = tf.stop_gradient(self.adversarial(model, features, labels, optimizer))
        theta = [tf.convert_to_tensor(v) for v in model.trainable_variables]
        line = _line(model)
        for copies, values in zip(line, rules.delayed(line, theta), strict=True):
            for copy, value in zip(copies, values, strict=True):
                copy.assign(value)
        images = tf.concat([features, tf.cast(adversarial, features.dtype)], 0)
        with _DOUBLED.up():
            return super().train_step(
                (images, tf.concat([labels] * 2, 0)), model, optimizer, metrics
            )

    def adversarial(self, model, features, labels, optimizer):
        """Returns the adversarial images of a batch, as the next step would compute them.

        With tau above 0, they do not depend on the model's current weights.

        Args:
            model: The model of `build_model`.
            features: Normalized images, of shape (batch, height, width, channels).
            labels: The labels of the images.
            optimizer: The optimizer, whose step count seeds the random starts.

        Returns:
            Normalized images in float32, of the shape of `features`.
        """
        attack = self.task_config.adversarial
        x = tf.cast(features, tf.float32)
        seed = self._seed(optimizer)
        noise = tf.random.stateless_uniform(tf.shape(x), seed, -1, 1)
        uniform = tf.random.stateless_uniform((tf.shape(x)[0], 1, 1, 1), seed + [1, 0])
        is_clean = uniform < attack.clean_start
        deviation = tf.constant(preprocess_ops.STDDEV_RGB, tf.float32)
        mean = tf.constant(preprocess_ops.MEAN_RGB, tf.float32)
        epsilon = attack.epsilon / deviation
        if self.task_config.losses.one_hot and not self.task_config.train_data.is_multilabel:
            labels = tf.one_hot(labels, self.task_config.model.num_classes)
        stale = model.stale.model if attack.tau else model

        def gradient(images):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(images)
                with BY_AUXILIARY.up():
                    outputs = tf.cast(stale(images, training=True), tf.float32)
                loss = self.build_losses(labels, outputs)
                if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
                    # Without the scaled loss, small gradients would be rounded to 0 in float16.
                    loss = optimizer.get_scaled_loss(loss)
            return tape.gradient(loss, images)

        return rules.attack(
            namespace, gradient, x, rules.start(namespace, x, noise, is_clean, epsilon),
            epsilon=epsilon, steps=attack.steps,
            step_size=epsilon if attack.step_size is None else attack.step_size / deviation,
            input_range=(-mean / deviation, (255 - mean) / deviation),
        )  # fmt: skip

    def _seed(self, optimizer):
        """Returns the seed of the attack's random starts in this step, on this replica.

        The seed depends on settings, on the number of the replica, and on counters of steps. Every
        checkpoint contains these counters, so that a resumed run repeats no seed.

        Args:
            optimizer: The optimizer, which has the counters.
        """
        context = tf.distribute.get_replica_context()  # None outside of `strategy.run`
        replica = context.replica_id_in_sync_group if context else 0
        micro_step = getattr(unwrapped(optimizer), "_micro_step", 0)
        seed = tf.stack([2 * (self.task_config.train_data.seed or 0), 0])
        for number in (optimizer.iterations, micro_step, replica):
            seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int32))
        return seed

    def build_losses(self, labels, model_outputs, aux_losses=None):
        """Returns the loss of a batch.

        If the batch consists of clean images followed by their adversarial images, the loss is the
        weighted sum of the loss of the clean ones and that of the adversarial ones.

        Args:
            labels: The labels of the batch.
            model_outputs: The outputs of the model for the batch.
            aux_losses: Regularization losses, which are added to each of these losses. Defaults to
                None.
        """
        build = super().build_losses
        if not _DOUBLED:
            return build(labels, model_outputs, aux_losses)
        halves = zip(tf.split(labels, 2), tf.split(model_outputs, 2), strict=True)
        clean, adversarial = (build(*half, aux_losses) for half in halves)
        return rules.weighted(clean, adversarial, self.task_config.adversarial.alpha)

    def process_metrics(self, metrics, labels, model_outputs, **kwargs):
        """Updates the metrics from the clean images of a batch only.

        Args:
            metrics: The metrics to update.
            labels: The labels of the batch.
            model_outputs: The outputs of the model for the batch.
            kwargs: Passed to the base class.
        """
        if _DOUBLED:
            labels, model_outputs = tf.split(labels, 2)[0], tf.split(model_outputs, 2)[0]
        super().process_metrics(metrics, labels, model_outputs, **kwargs)


def _copies(variables):
    """Returns variables that are not trained, with the values of others.

    Each replica has its own copy. A checkpoint saves the copy of the first replica, because the
    copies are equal.
    """
    options = {
        "synchronization": tf.VariableSynchronization.ON_READ,
        "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
    }
    return [tf.Variable(v, trainable=False, **options) for v in variables]


def _line(model):
    """Returns the stored parameters of the model at the last tau steps, the oldest first.

    The result has a list of variables for each step. It is empty if tau is 0.
    """
    stale = getattr(model, "stale", None)
    return [] if stale is None else [stale.model.trainable_variables, *stale.line]
