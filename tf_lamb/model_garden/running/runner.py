"""Model Garden's trainer and runner, with what an experiment of ours needs around its training.

Under `gradient_accumulation_steps: N` an optimizer updates every N-th time it is called. This
trainer calls it N times a step, with an N-th of the batch each time, so that steps, intervals and
the learning rate count updates, and `task.train_data.global_batch_size` is the batch of an update,
on a pod and on one device alike.

A step whose gradients are not finite is skipped, in float16, too. `global_step` counts it; the
optimizer's `iterations`, which the learning rate follows, does not.
"""

import os
import pprint
import tempfile

import tensorflow as tf
import tf_keras
from absl import logging
from official.core import base_trainer, train_lib

from tf_lamb.api.callbacks.noise import shared_statistics
from tf_lamb.api.noise import AdaScale, MeasureNoise
from tf_lamb.api.optimizers import layout
from tf_lamb.api.variables import is_ours, step_of, unwrapped
from tf_lamb.model_garden.checks import data as data_checks
from tf_lamb.model_garden.common import batches, seams
from tf_lamb.model_garden.common.console import ProgressBar
from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.experiments import schedules
from tf_lamb.model_garden.folders import checkpoints, model_dirs
from tf_lamb.model_garden.running import actions, controllers


def measuring(optimizer):
    """The measuring optimizer among what is wrapped in each other, or None."""
    found = unwrapped(optimizer, MeasureNoise)
    return found if isinstance(found, MeasureNoise) else None


def is_synchronized(layer):
    """Whether it is a batch normalization with statistics of all replicas together."""
    sync = tf_keras.layers.experimental.SyncBatchNormalization
    return getattr(layer, "synchronized", False) or isinstance(layer, sync)


def _check_build(config, model, optimizer) -> None:
    """Raises `UserError` where an optimizer of ours refuses the weights of the model."""
    ours = unwrapped(getattr(optimizer, "_optimizer", optimizer))
    if is_ours(ours):
        kind = config.trainer.optimizer_config.optimizer.type
        with named(f"trainer.optimizer_config.optimizer.{kind}"):
            ours.plan_for(model.trainable_variables)


class Trainer(base_trainer.Trainer):
    """Model Garden's trainer in all but how often a step calls the task's.

    Attributes:
        has_our_runner: whether a `Runner` sees to what the experiment asks for besides steps.
    """

    has_our_runner = False

    def __init__(self, config, task, model, optimizer, *args, **kwargs):
        self._micro_batches = batches.micro_batches(config)
        _check_build(config, model, optimizer)
        super().__init__(config, task, model, optimizer, *args, **kwargs)
        layout.note_model(optimizer, model)  # else checkpoints know layers by order among trained
        if (measured := measuring(optimizer)) is not None:
            try:  # now, where it can still refuse
                measured.build(model.trainable_variables)
            except ValueError as error:
                raise UserError(str(error)) from error

    def distribute_dataset(self, dataset_or_fn, data, *args, **kwargs):
        """See base class; the batches of training are micro-batches, and no value is beyond."""
        if data is self.config.task.train_data and self._micro_batches > 1:
            # Only now does a TPU say how many replicas it has.
            replicas = self.strategy.num_replicas_in_sync
            batches.per_replica_batch(data.global_batch_size, replicas, self._micro_batches)
            data = data.replace(global_batch_size=data.global_batch_size // self._micro_batches)
        if (within := data_checks.limits(self.config.task, data)) and callable(dataset_or_fn):
            build = dataset_or_fn

            def dataset_or_fn(data, input_context=None):  # which orbit asks for by its name
                return data_checks.checked(build(data, input_context), within)

        return super().distribute_dataset(dataset_or_fn, data, *args, **kwargs)

    def initialize(self):
        """See base class; an earlier stage may hand on its optimizer, too."""
        config = self.task.task_config
        try:
            super().initialize()
            if getattr(config, "init_optimizer", False):
                path = model_dirs.checkpoint_in(config.init_checkpoint)
                # With the model: averages, and slots of Model Garden's, are found by their weights.
                whole = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
                whole.read(path).expect_partial().assert_existing_objects_matched()
        except ValueError as error:
            raise UserError(
                f"task.init_checkpoint={config.init_checkpoint} does not fit this model: {error}"
            ) from error

    def eval_begin(self):
        """See base class."""
        self._batches = 0
        return super().eval_begin()

    def eval_reduce(self, state=None, step_outputs=None):
        """See base class, which calls it after each batch."""
        self._batches += 1
        return super().eval_reduce(state, step_outputs)

    def eval_end(self, aggregated_logs=None):
        """See base class; without a batch there are no results."""
        # A loop of TensorFlow's calls no `eval_reduce`, and has an error of its own.
        if not self._batches and not self.config.trainer.eval_tf_while_loop:
            raise UserError(data_checks.no_batch(self.config.task.validation_data))
        return super().eval_end(aggregated_logs)

    def train_loop_begin(self):
        """See base class; refuses or tells what nobody sees to in this loop."""
        if not self.has_our_runner:
            self._check_loop()
            self.has_our_runner = True  # all is told
        super().train_loop_begin()

    def _check_loop(self):
        rate = schedules.steered_rate(self.optimizer)
        if rate and not rate.is_watched:
            raise UserError(
                "the learning rate follows the loss, and nobody watches the loss in this loop. "
                "Train with the runner of tf_lamb.model_garden.running.runner, or give the loop "
                "the action that the learning rate's own `action` makes"
            )
        config = self.config.trainer.optimizer_config.optimizer.get()
        if settings := list(_seen_to_by_a_runner(config)):
            logging.warning(
                "This loop is not run by tf_lamb.model_garden.running.runner. Nothing comes of %s, "
                "but by actions that you give it.",
                ", ".join(settings),
            )

    def train_step(self, iterator):
        """See base class; as many micro-batches as the optimizer makes one update of."""
        if self._micro_batches == 1:
            return super().train_step(iterator)

        done = tf.identity(self.global_step)
        step = base_trainer.Trainer.train_step

        def micro_step(i):
            step(self, iterator)
            return [i + 1]

        tf.while_loop(lambda i: i < self._micro_batches, micro_step, [0], parallel_iterations=1)
        self.global_step.assign(done + 1)  # which each of them has counted


def _seen_to_by_a_runner(config):
    """The settings of an optimizer that are nothing to it, as they are written."""
    adascale, measuring = getattr(config, "adascale", None), getattr(config, "measure_noise", None)
    if getattr(config, "divergence_report", False):
        yield "divergence_report=true"
    if every := getattr(config, "trust_ratios_every", None):
        yield f"trust_ratios_every={every}"
    if measuring is not None and measuring.enabled:
        yield "measure_noise.enabled=true"
    if adascale is not None and adascale.scale and adascale.base_steps:
        yield f"adascale.base_steps={adascale.base_steps}"


class Runner(train_lib.OrbitExperimentRunner):
    """Model Garden's runner, with the actions that the experiment's optimizer asks for."""

    console = None  # shows nothing
    writes_params = False  # or its main does, before the optimizer can refuse the model
    evaluated = before = None
    _advisers: tuple = ()
    _trust_ratios = _steering = _progress = None

    def _build_best_checkpoint_exporter(self):
        trainer = self.params.trainer
        if not trainer.best_checkpoint_export_subdir or not trainer.best_checkpoint_eval_metric:
            return None
        folder = os.path.join(self.model_dir, trainer.best_checkpoint_export_subdir)
        try:
            return checkpoints.Best(
                folder, trainer.best_checkpoint_eval_metric, trainer.best_checkpoint_metric_comp
            )
        except ValueError as error:  # its notes are damaged, or the comparison is unknown
            raise UserError(
                f"{os.path.join(folder, 'info.json')} cannot be read: {error}. Delete it: the next "
                "evaluation is the best one"
            ) from error

    def _build_trainer(self, *args, **kwargs):
        try:
            trainer = super()._build_trainer(*args, **kwargs)
        except UserError as error:
            reason, *_ = str(error).split("\n")  # Gin adds lines on where it stood in the call
            raise UserError(reason) from error
        if self.writes_params and "train" in self._mode:
            model_dirs.write_params(self.params, self.model_dir)
        return trainer

    def _maybe_build_checkpoint_manager(self):
        # Every worker has to save, for what they sum up together; only the chief's is kept.
        chief = self.strategy.extended.should_checkpoint
        folder = self.model_dir if chief else tempfile.mkdtemp()
        if self._mode == "eval":  # which saves nothing, and does not mind what the folder names
            folder = os.path.join(self.model_dir, "none")
        return checkpoints.Manager(
            self.trainer.checkpoint,
            directory=folder,
            max_to_keep=self.params.trainer.max_to_keep if chief else 1,
            step_counter=self.trainer.global_step,
            checkpoint_interval=self.params.trainer.checkpoint_interval,
            init_fn=self.trainer.initialize,
            model_dir=self.model_dir,
            evaluated=self.evaluated if self._mode == "eval" else None,
            mode=self._mode,
        )

    def _build_controller(self, trainer, *args, train_actions=None, eval_actions=None, **kwargs):
        # seam: tf-models-official 2.20.0. `official.nlp.train` hands neither of them on.
        train_actions = [
            *(train_actions or []),
            *(self._actions(trainer.optimizer) if trainer else []),
        ]
        eval_actions = [*(eval_actions or [])]
        if self.console:
            self._progress = ProgressBar(
                self.console,
                lambda: int(self.trainer.global_step.numpy()),
                self.params.trainer.train_steps if trainer else None,
                self.params.task.train_data.global_batch_size,
            )
            train_actions.append(self._progress)
            eval_actions.append(self._progress.evaluated)
        chief = self.strategy.extended.should_checkpoint
        kwargs["controller_cls"] = controllers.Controller
        controller = super()._build_controller(
            trainer, *args, train_actions=train_actions, eval_actions=eval_actions, **kwargs
        )
        controller.model_dir, controller.writes = self.model_dir, chief
        controller.is_over = lambda: model_dirs.is_over(self.params, self.model_dir)
        controllers.let_recovery_go_first(controller)
        if self._steering:  # the controller has restored the optimizer
            self._steering.resume()
        if trainer and self.before and chief:
            measured, own = measuring(trainer.optimizer), self.params.trainer.optimizer_config
            counts = isinstance(measured, AdaScale)
            step = measured.base_steps if counts else step_of(trainer.optimizer)
            if said := schedules.jump(self.before, own, step):
                print(said, flush=True)
        return controller

    def _actions(self, optimizer):
        self.trainer.has_our_runner = True
        config = self.params.trainer.optimizer_config.optimizer.get()
        mine: list = []
        if getattr(config, "divergence_report", False):
            mine.append(actions.Divergence(unwrapped(optimizer), self.trainer.model))
        if every := getattr(config, "trust_ratios_every", None):
            folder = os.path.join(self.model_dir, "trust_ratios")
            self._trust_ratios = actions.TrustRatios(optimizer, folder, every)
            mine.append(self._trust_ratios)
        if rate := schedules.steered_rate(optimizer):
            chief = self.strategy.extended.should_checkpoint
            self._steering = rate.action(optimizer, self.model_dir, writes=chief)
            self._advisers = (self._steering,)
        if (measured := measuring(optimizer)) is not None:
            if layers := [m.name for m in self.trainer.model.submodules if is_synchronized(m)]:
                logging.warning(shared_statistics(layers))
            batch = self.params.task.train_data.global_batch_size
            self._advisers += (actions.NoiseScale(measured, batch),)
            if isinstance(measured, AdaScale):
                steps = config.adascale.base_steps
                self._advisers += (actions.AdaScaleProgress(measured, steps),)
        return [*mine, *self._advisers]

    def run(self):
        """See base class; ends with what was measured."""
        if self._progress and "train" in self._mode:
            self._progress.begin()
        result = super().run()
        if self.console:
            self.console.close_bar()
        if self._trust_ratios:
            self._trust_ratios.close()
        for adviser in self._advisers:
            advice = adviser.advice()  # of all workers, if it reads what they share
            if self.strategy.extended.should_checkpoint:
                print(advice, flush=True)
        return result


def install(params=None, shown_on=None, evaluated=None, strategy=None, before=None) -> None:
    """Makes every run of this process use this runner, and write its params.yaml whole.

    Args:
        params: what Model Garden's main trains; None for what it parses itself.
        shown_on: the `Console` that shows how far it is, instead of Orbit's own lines.
        evaluated: the checkpoint that is evaluated; None for the one that the folder names.
        strategy: of several workers, who have met; None for one that Model Garden's main makes.
        before: the params.yaml that the run in this folder had so far.
    """
    Runner.console, Runner.evaluated, Runner.before = shown_on, evaluated, before
    Runner.writes_params = params is not None
    by_main = model_dirs.write_params if params is None else lambda params, model_dir: None
    seams.use_runner(Runner, by_main)
    if params is not None:
        logging.info("Final experiment parameters:\n%s", pprint.pformat(params.as_dict()))
        seams.hand_over(params, strategy, is_shown=shown_on is not None)


def register_trainer() -> None:
    """Makes `train_lib` use this trainer and its runner, unless gin is told of another trainer."""
    if not issubclass(train_lib.OrbitExperimentRunner, Runner):
        install()
    seams.use_trainer(Trainer)
