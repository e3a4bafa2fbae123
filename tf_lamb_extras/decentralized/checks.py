"""Checks the arguments of decentralized training before its first step.

Each error says what is wrong, and then what to do.
"""

import keras

from tf_lamb.core import checks
from tf_lamb.core.messages import warn
from tf_lamb_extras.decentralized import rules

# The arguments of Keras's SGD that decentralized training does not support, each with a hint that
# is added to the error message.
_FOREIGN = {
    "nesterov": "", "clipnorm": "", "clipvalue": "", "global_clipnorm": "", "use_ema": "",
    "gradient_accumulation_steps": "", "loss_scale_factor": "",
    "weight_decay": " Keras decays outside of the gradient: say Decentralized(weight_decay=...)",
}  # fmt: skip


def check_backend():
    """Raises ValueError unless Keras runs on JAX."""
    if (name := keras.backend.backend()) != "jax":
        raise ValueError(
            f"Keras runs on {name!r}, and decentralized training is for its JAX backend: set "
            "KERAS_BACKEND=jax before Keras is imported."
        )


def devices_of(devices):
    """Returns the devices to train on as a tuple, and warns if there is only one.

    Args:
        devices: The devices that the user passed; None stands for all devices of JAX.

    Raises:
        ValueError: If JAX runs several processes, if Keras has a distribution, or if there is no
            device or a device is listed twice.
    """
    import jax

    if jax.process_count() > 1:
        raise ValueError(
            f"Decentralized trains on the devices of one process, but JAX runs "
            f"{jax.process_count()}. Start one process that sees all devices."
        )
    if distribution := keras.distribution.distribution():
        raise ValueError(
            f"Decentralized distributes by itself, and Keras is under {type(distribution).__name__}"
            ". First keras.distribution.set_distribution(None), and make the model after it."
        )
    devices = tuple(jax.devices() if devices is None else devices)
    if len(set(devices)) < max(len(devices), 1):
        raise ValueError(
            f"devices={list(devices)!r} must be different devices, and one at least: each is a "
            "worker. Leave devices out for all of jax.devices()."
        )
    if len(devices) == 1:
        warn(
            f"Decentralized has one worker, on {devices[0]}, and nobody to average with: this is "
            "SGD. To try it out on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count=8 "
            "before JAX is imported."
        )
    return devices


def own_optimizer(model, method):
    """Returns a copy of the SGD with which the user compiled a model.

    Decentralized training takes its learning rate and its momentum.

    Args:
        model: A compiled model.
        method: The name of the method of decentralized training, such as "decentlam".

    Raises:
        ValueError: If the model is not compiled or overrides `train_step`, or if its optimizer is
            not an SGD, has an argument that no method supports, or has a momentum or learning rate
            that this method does not allow.
    """
    if not getattr(model, "compiled", False):
        raise ValueError(
            f"{model!r} is not compiled. First model.compile(keras.optimizers.SGD(0.05, "
            "momentum=0.9), loss)."
        )
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            f"{type(model).__name__} has a train_step of its own, which Decentralized would not "
            "run. Override compute_loss instead."
        )
    optimizer = model.optimizer
    if type(optimizer) is not keras.optimizers.SGD:
        raise ValueError(
            f"{method!r} is a form of SGD that takes the place of the optimizer, so it cannot run "
            f"{type(optimizer).__name__}. Compile with keras.optimizers.SGD(0.05, momentum=0.9)."
        )
    for name, hint in _FOREIGN.items():
        if value := getattr(optimizer, name):
            raise ValueError(
                f"{method!r} has no {name}, and the optimizer has {name}={value!r}. Leave it "
                f"out.{hint}"
            )
    _check_rate(optimizer, method)
    return keras.optimizers.SGD.from_config(optimizer.get_config())


def compiled_optimizer(workers, optimizer, loss):
    """Returns the optimizer that a `Decentralized` model has after a call of its `compile`.

    The first call sets it, and later calls cannot change it.

    Args:
        workers: The `Decentralized` model.
        optimizer: The optimizer that this call of `compile` was given, or None.
        loss: The loss that this call of `compile` was given, or None.

    Raises:
        ValueError: If this call is not the first one, and was given a loss or another optimizer.
    """
    present = getattr(workers, "optimizer", None)
    if present is None or (optimizer in (None, present) and loss is None):
        return present or optimizer
    raise ValueError(
        f"{workers.name} has the loss of its model, and a rule that was made for the model's "
        f"optimizer: compile({optimizer!r}, {loss!r}) cannot change them. Compile the model so, "
        "with a keras.optimizers.SGD, and make a new Decentralized of it."
    )


def _check_rate(optimizer, method):
    """Raises ValueError for a momentum or a learning rate that the method does not allow.

    The momentum must be 0 for "dsgd", and above 0 for the other methods. A learning rate that is
    not a schedule must not be negative, and must not be 0 for "decentlam".

    Args:
        optimizer: The SGD of Keras that has the momentum and the learning rate.
        method: The name of the method of decentralized training.
    """
    if (optimizer.momentum > 0) == (method == "dsgd"):
        raise ValueError(
            f"method={method!r} and momentum={optimizer.momentum!r} do not go together: 'dsgd' is "
            "the method without momentum. Compile with keras.optimizers.SGD(0.05, momentum=0.9) "
            "for any other."
        )
    rate = optimizer.get_config()["learning_rate"]
    if isinstance(rate, float):
        checks.number("learning_rate", rate)
        if rate == 0 and method == "decentlam":
            raise ValueError(
                "'decentlam' divides by the learning rate, which is 0. Compile with one above 0, "
                "such as keras.optimizers.SGD(0.05, momentum=0.9)."
            )


def check_convergence(method, matrices, momentum):
    """Checks that the workers' weights would become equal if all gradients were 0.

    Args:
        method: The name of the method of decentralized training.
        matrices: The mixing matrices, of which each step uses the next one in turn.
        momentum: The momentum, in [0, 1). Only "decentlam" needs it.

    Raises:
        ValueError: If the differences between the workers grow or stay, or if it is not known
            whether they do.
    """
    if method != "decentlam":
        if not rules.averages(matrices):
            raise ValueError(
                f"{method!r} never brings these {len(matrices[0])} workers together, because with "
                "this topology they pass their differences on in a circle. Use (W + I)/2, in which "
                "each worker also keeps a part of its own weights."
            )
        return
    growth = rules.growth(matrices, momentum)
    symmetric = "a symmetric topology ('ring', 'symmetric_exponential', 'grid', 'full')"
    if growth is None:
        raise ValueError(
            "'decentlam' drives workers apart with some matrices that are not symmetric, and of "
            f"this one nothing is known. Use (W + W.T)/2, {symmetric}, or method='dmsgd'."
        )
    if growth >= 1:
        most = rules.largest_momentum(matrices)
        raise ValueError(
            f"'decentlam' with momentum {momentum:g} drives these {len(matrices[0])} workers "
            f"apart, {growth:.3g} times further each step, whatever the learning rate. Use "
            f"{symmetric}, method='dmsgd', or a momentum of at most {most:g}."
        )


def check_batch(size, workers):
    """Checks that a batch divides among the workers.

    Args:
        size: The number of examples in the batch.
        workers: The number of workers.

    Raises:
        ValueError: If the number of workers does not divide the batch evenly. The message names the
            nearest sizes that it divides.
    """
    share, remainder = divmod(size, workers)
    if remainder:
        nearest = " or ".join(str(n * workers) for n in (share, share + 1) if n)
        raise ValueError(
            f"a batch of {size} does not divide among {workers} workers: {size} = {share} x "
            f"{workers} + {remainder}. Make every batch, the last of an epoch too, one of "
            f"{nearest} or another multiple of {workers}."
        )
