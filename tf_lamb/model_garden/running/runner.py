"""Extends Model Garden's trainer and runner for the optimizers of this package.

With `gradient_accumulation_steps: N` an optimizer makes an update at every N-th call of
`apply_gradients`. A step of this trainer makes N calls, each with an N-th of the batch. Therefore
steps, intervals and the learning rate count updates, and `task.train_data.global_batch_size` is the
number of examples of an update, whatever the number of devices.

A step whose gradients are not finite is skipped, also in float16. `global_step` counts a skipped
step; the optimizer's `iterations`, which the learning rate follows, does not.
"""

import os
import pprint
import tempfile

import tensorflow as tf
import tf_keras
from absl import logging
from official.core import base_trainer, train_lib

from tf_lamb.api.callbacks.noise import synchronized_message
from tf_lamb.api.noise import AdaScale, MeasureNoise
from tf_lamb.api.optimizers import layout
from tf_lamb.api.variables import is_ours, step_of, unwrapped
from tf_lamb.model_garden.checks import data as data_checks
from tf_lamb.model_garden.common import batches, seams
from tf_lamb.model_garden.common.console import ProgressBar
from tf_lamb.model_garden.common.errors import UserError, named
from tf_lamb.model_garden.experiments import schedule_configs
from tf_lamb.model_garden.folders import checkpoints, model_dirs
from tf_lamb.model_garden.running import actions, controllers


def measuring(optimizer):
    """Returns the `MeasureNoise` or `AdaScale` optimizer that `optimizer` is or wraps, or None."""
    innermost = unwrapped(optimizer, MeasureNoise)
    return innermost if isinstance(innermost, MeasureNoise) else None


def is_synchronized(layer):
    """Returns whether a layer is a batch normalization whose statistics span all replicas."""
    sync = tf_keras.layers.experimental.SyncBatchNormalization
    return getattr(layer, "synchronized", False) or isinstance(layer, sync)


def _check_build(config, model, optimizer) -> None:
    """Raises `UserError` if an optimizer of this package cannot train the weights of the model.

    Does nothing for other optimizers.
    """
    innermost = unwrapped(getattr(optimizer, "_optimizer", optimizer))
    if is_ours(innermost):
        kind = config.trainer.optimizer_config.optimizer.type
        with named(f"trainer.optimizer_config.optimizer.{kind}"):
            innermost.plan_for(model.trainable_variables)


class Trainer(base_trainer.Trainer):
    """Model Garden's trainer, which calls the task's step once for each micro-batch.

    Attributes:
        has_our_runner: whether a `Runner` makes the Orbit actions that the settings of the
            optimizer ask for, such as `trust_ratios_every`.
    """

    has_our_runner = False

    def __init__(self, config, task, model, optimizer, *args, **kwargs):
        self._micro_batches = batches.micro_batches(config)
        _check_build(config, model, optimizer)
        super().__init__(config, task, model, optimizer, *args, **kwargs)
        # The optimizer saves with its slot variables where in the model each trained variable is.
        # So a checkpoint is restored by the places of layers, and not by their order of creation.
        layout.record_model(optimizer, model)
        if (measuring_optimizer := measuring(optimizer)) is not None:
            try:  # built here, so that its errors stop the run before the first step
                measuring_optimizer.build(model.trainable_variables)
            except ValueError as error:
                raise UserError(str(error)) from error

    def distribute_dataset(self, dataset_or_fn, data, *args, **kwargs):
        """Distributes a data set, in micro-batches for training; see base class.

        A value that the task cannot use, such as a token beyond the vocabulary, ends the data set
        with an error.

        Args:
            dataset_or_fn: the data set, or a function that makes it from a data config.
            data: the data config.
            *args: as in the base class.
            **kwargs: as in the base class.

        Returns:
            The distributed data set.

        Raises:
            ValueError: if the batch does not divide into replicas and micro-batches.
        """
        if data is self.config.task.train_data and self._micro_batches > 1:
            # The batch is checked here again, because on a TPU the number of replicas is known only
            # after the strategy has been made.
            replicas = self.strategy.num_replicas_in_sync
            batches.per_replica_batch(data.global_batch_size, replicas, self._micro_batches)
            data = data.replace(global_batch_size=data.global_batch_size // self._micro_batches)
        if (limits := data_checks.limits(self.config.task, data)) and callable(dataset_or_fn):
            build_dataset = dataset_or_fn

            def dataset_or_fn(data, input_context=None):  # Orbit passes `input_context` by name
                return data_checks.with_bounds_check(build_dataset(data, input_context), limits)

        return super().distribute_dataset(dataset_or_fn, data, *args, **kwargs)

    def initialize(self):
        """Restores the weights of `task.init_checkpoint`; with `init_optimizer`, its optimizer too.

        Raises:
            UserError: if the checkpoint does not fit this model.
        """
        config = self.task.task_config
        try:
            super().initialize()
            if getattr(config, "init_optimizer", False):
                path = model_dirs.checkpoint_in(config.init_checkpoint)
                # The model is read again, because TensorFlow finds moving averages of the weights,
                # and the slot variables of Model Garden's optimizers, by way of the weights.
                checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
                checkpoint.read(path).expect_partial().assert_existing_objects_matched()
        except ValueError as error:
            raise UserError(
                f"task.init_checkpoint={config.init_checkpoint} does not fit this model: {error}"
            ) from error

    def eval_begin(self):
        """Begins to count the batches of an evaluation; see base class."""
        self._batches = 0
        return super().eval_begin()

    def eval_reduce(self, state=None, step_outputs=None):
        """Counts the batches of an evaluation; Orbit calls this method after each batch.

        Args:
            state: as in the base class.
            step_outputs: as in the base class.

        Returns:
            The state that the base class returns.
        """
        self._batches += 1
        return super().eval_reduce(state, step_outputs)

    def eval_end(self, aggregated_logs=None):
        """Returns the results of an evaluation; see base class.

        Raises:
            UserError: if there was no batch, so that there are no results.
        """
        # With `eval_tf_while_loop`, Orbit does not call `eval_reduce`, so no batch is counted. Then
        # TensorFlow itself raises an error if there is no batch.
        if not self._batches and not self.config.trainer.eval_tf_while_loop:
            raise UserError(data_checks.no_batch(self.config.task.validation_data))
        return super().eval_end(aggregated_logs)

    def train_loop_begin(self):
        """Begins a loop of steps; see base class.

        Before the first one, it logs a warning if settings need a `Runner` and none is used.

        Raises:
            UserError: if the learning rate follows the loss, but no action in this loop passes the
                loss on to it.
        """
        if not self.has_our_runner:
            self._check_loop()
            self.has_our_runner = True  # so that the check runs once
        super().train_loop_begin()

    def _check_loop(self):
        """Raises `UserError`, or logs a warning, if settings need a `Runner` and none is used."""
        rate = schedule_configs.steered_rate(self.optimizer)
        if rate and not rate.is_watched:
            raise UserError(
                "the learning rate follows the loss, and nobody watches the loss in this loop. "
                "Train with the runner of tf_lamb.model_garden.running.runner, or give the loop "
                "the action that the learning rate's own `action` makes"
            )
        config = self.config.trainer.optimizer_config.optimizer.get()
        if settings := list(_settings_for_a_runner(config)):
            logging.warning(
                "This loop is not run by tf_lamb.model_garden.running.runner. Nothing comes of %s, "
                "but by actions that you give it.",
                ", ".join(settings),
            )

    def train_step(self, iterator):
        """Runs the base class's step once for each micro-batch of an update."""
        if self._micro_batches == 1:
            return super().train_step(iterator)

        steps_before = tf.identity(self.global_step)
        call_step = base_trainer.Trainer.train_step

        def micro_step(i):
            call_step(self, iterator)
            return [i + 1]

        tf.while_loop(lambda i: i < self._micro_batches, micro_step, [0], parallel_iterations=1)
        self.global_step.assign(steps_before + 1)  # the base class added 1 for each micro-batch


def _settings_for_a_runner(config):
    """Yields, as `name=value`, the settings of an optimizer that only a `Runner` acts on."""
    adascale, noise = getattr(config, "adascale", None), getattr(config, "measure_noise", None)
    if getattr(config, "divergence_report", False):
        yield "divergence_report=true"
    if interval := getattr(config, "trust_ratios_every", None):
        yield f"trust_ratios_every={interval}"
    if noise is not None and noise.enabled:
        yield "measure_noise.enabled=true"
    if adascale is not None and adascale.scale and adascale.base_steps:
        yield f"adascale.base_steps={adascale.base_steps}"


class Runner(train_lib.OrbitExperimentRunner):
    """Model Garden's runner, with the actions that the experiment's optimizer asks for.

    Attributes:
        console: the `Console` that shows the progress; None shows nothing.
        writes_params: whether the runner writes params.yaml, after it has built the trainer. If
            not, Model Garden's main writes it earlier, even if building the trainer then fails.
        evaluated: the path of the checkpoint that mode `eval` evaluates; None for the last one of
            the folder.
        before: the settings in the folder's params.yaml before this command, as a dict; None if
            there was no such file.
    """

    console = None
    writes_params = False
    evaluated = before = None
    _advisers: tuple = ()
    _trust_ratios = _steering = _progress = None

    def _build_best_checkpoint_exporter(self):
        """Makes the exporter of the best checkpoint; None if its metric or folder is not set."""
        trainer = self.params.trainer
        if not trainer.best_checkpoint_export_subdir or not trainer.best_checkpoint_eval_metric:
            return None
        folder = os.path.join(self.model_dir, trainer.best_checkpoint_export_subdir)
        try:
            return checkpoints.Best(
                folder, trainer.best_checkpoint_eval_metric, trainer.best_checkpoint_metric_comp
            )
        except ValueError as error:  # info.json is damaged, or the comparison is unknown
            raise UserError(
                f"{os.path.join(folder, 'info.json')} cannot be read: {error}. Delete it: the next "
                "evaluation is the best one"
            ) from error

    def _build_trainer(self, *args, **kwargs):
        """Makes the trainer; writes params.yaml if `writes_params` is set and the run trains."""
        try:
            trainer = super()._build_trainer(*args, **kwargs)
        except UserError as error:
            reason, *_ = str(error).split("\n")  # Gin appends lines on the call that failed
            raise UserError(reason) from error
        if self.writes_params and "train" in self._mode:
            model_dirs.write_params(self.params, self.model_dir)
        return trainer

    def _maybe_build_checkpoint_manager(self):
        """Makes the `checkpoints.Manager` of this process."""
        # All workers have to save, because saving sums some variables over the workers. Only the
        # chief saves to the folder of the run.
        is_chief = self.strategy.extended.should_checkpoint
        folder = self.model_dir if is_chief else tempfile.mkdtemp()
        if self._mode == "eval":  # a folder without files, as nothing is saved
            folder = os.path.join(self.model_dir, "none")
        return checkpoints.Manager(
            self.trainer.checkpoint,
            directory=folder,
            max_to_keep=self.params.trainer.max_to_keep if is_chief else 1,
            step_counter=self.trainer.global_step,
            checkpoint_interval=self.params.trainer.checkpoint_interval,
            init_fn=self.trainer.initialize,
            model_dir=self.model_dir,
            evaluated=self.evaluated if self._mode == "eval" else None,
            mode=self._mode,
        )

    def _build_controller(self, trainer, *args, train_actions=None, eval_actions=None, **kwargs):
        """Makes this package's `Controller`, with the optimizer's actions and the progress bar.

        It also resumes the action that steers the learning rate. The chief prints a note if the
        settings make the learning rate of a resumed run jump.
        """
        # seam: relies on tf-models-official 2.20.0, which calls this private method. It passes None
        # for both kinds of actions if the caller of `run_experiment` has passed no actions.
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
        is_chief = self.strategy.extended.should_checkpoint
        kwargs["controller_cls"] = controllers.Controller
        controller = super()._build_controller(
            trainer, *args, train_actions=train_actions, eval_actions=eval_actions, **kwargs
        )
        controller.model_dir, controller.writes = self.model_dir, is_chief
        controller.is_over = lambda: model_dirs.is_over(self.params, self.model_dir)
        controllers.let_recovery_go_first(controller)
        if self._steering:  # after the controller has restored the optimizer
            self._steering.resume()
        if trainer and self.before and is_chief:
            optimizer, config = measuring(trainer.optimizer), self.params.trainer.optimizer_config
            is_adascale = isinstance(optimizer, AdaScale)
            step = optimizer.base_steps if is_adascale else step_of(trainer.optimizer)
            if message := schedule_configs.jump(self.before, config, step):
                print(message, flush=True)
        return controller

    def _actions(self, optimizer):
        """Makes the Orbit actions that the optimizer's settings ask for, such as `adascale`.

        It keeps those that `run` calls at its end, and tells the trainer that they are made. Logs a
        warning if synchronized batch normalization would bias a measured noise.
        """
        self.trainer.has_our_runner = True
        config = self.params.trainer.optimizer_config.optimizer.get()
        train_actions: list = []
        if getattr(config, "divergence_report", False):
            train_actions.append(actions.Divergence(unwrapped(optimizer), self.trainer.model))
        if interval := getattr(config, "trust_ratios_every", None):
            folder = os.path.join(self.model_dir, "trust_ratios")
            self._trust_ratios = actions.TrustRatios(optimizer, folder, interval)
            train_actions.append(self._trust_ratios)
        if rate := schedule_configs.steered_rate(optimizer):
            is_chief = self.strategy.extended.should_checkpoint
            self._steering = rate.action(optimizer, self.model_dir, writes=is_chief)
            self._advisers = (self._steering,)
        if (measuring_optimizer := measuring(optimizer)) is not None:
            if layers := [
                layer.name for layer in self.trainer.model.submodules if is_synchronized(layer)
            ]:
                logging.warning(synchronized_message(layers))
            batch_size = self.params.task.train_data.global_batch_size
            self._advisers += (actions.NoiseScale(measuring_optimizer, batch_size),)
            if isinstance(measuring_optimizer, AdaScale):
                steps = config.adascale.base_steps
                self._advisers += (actions.AdaScaleProgress(measuring_optimizer, steps),)
        return [*train_actions, *self._advisers]

    def run(self):
        """Runs the experiment as the base class does, and then prints the advice of the actions.

        An example is the advice on the batch size that the action `NoiseScale` gives. The files of
        trust ratios are closed first, and a table of the last ratios is logged.
        """
        if self._progress and "train" in self._mode:
            self._progress.begin()
        result = super().run()
        if self.console:
            self.console.close_bar()
        if self._trust_ratios:
            self._trust_ratios.close()
        for adviser in self._advisers:
            advice = adviser.advice()  # called in all workers: it may read shared values
            if self.strategy.extended.should_checkpoint:
                print(advice, flush=True)
        return result


def install(params=None, shown_on=None, evaluated=None, strategy=None, before=None) -> None:
    """Makes Model Garden use this runner, and write params.yaml completely or not at all.

    Args:
        params: the `ExperimentConfig` that Model Garden's main trains; None for the one that it
            parses from its flags.
        shown_on: the `Console` that shows the progress; None lets Orbit print its own lines.
        evaluated: the path of the checkpoint to evaluate; None for the last one of the folder.
        strategy: the strategy of several workers or of a TPU; None for the one that Model Garden's
            main makes.
        before: the settings in the folder's params.yaml before this command, as a dict; None if
            there was no such file.
    """
    Runner.console, Runner.evaluated, Runner.before = shown_on, evaluated, before
    Runner.writes_params = params is not None
    write_params = model_dirs.write_params if params is None else lambda params, model_dir: None
    seams.use_runner(Runner, write_params)
    if params is not None:
        logging.info("Final experiment parameters:\n%s", pprint.pformat(params.as_dict()))
        seams.hand_over(params, strategy, is_shown=shown_on is not None)


def register_trainer() -> None:
    """Makes Model Garden's `train_lib` use `Trainer` and `Runner` for every experiment.

    A Gin file can still choose another trainer later.
    """
    if not issubclass(train_lib.OrbitExperimentRunner, Runner):
        install()
    seams.use_trainer(Trainer)
