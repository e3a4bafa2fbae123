"""What stands in Model Garden's tables of optimizers: classes, of which each makes one of ours.

A class, since Model Garden's own code and its users' call what is there without arguments, and ask
whether an optimizer is an instance of it.
"""

import tf_lamb.tf_keras

CLIPPINGS = ("clipnorm", "global_clipnorm", "clipvalue")


class _Entry(type):
    """Whoever calls one gets what its `make` makes: its base class, maybe in a wrapper."""

    def __call__(cls, *args, **kwargs):
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance):
        return isinstance(instance, cls.__base__)


def entry(cls, make):
    """A class that derives from `cls`, and is called as `make` is."""
    return _Entry(cls.__name__, (cls,), {"make": staticmethod(make)})


def transformed(
    cls, learning_rate=0.001, gradient_aggregator=None, gradient_transformers=None, **arguments
):
    """An optimizer of ours that sums gradients over replicas, and changes the sums, as it is told.

    Args:
        gradient_aggregator, gradient_transformers: as in `tf_keras.optimizers.legacy.Optimizer`.
    """
    optimizer = cls(learning_rate, **arguments)
    if gradient_aggregator:
        optimizer.aggregate_gradients = _where_there_are_any(gradient_aggregator)
    if gradient_transformers:
        for name in CLIPPINGS:
            if norm := getattr(optimizer, name):
                raise ValueError(
                    f"{name}={norm:g} cannot be set beside gradient_transformers, such as those of "
                    "task.differential_privacy_config, which clip themselves"
                )
        apply = optimizer.apply_gradients

        def apply_gradients(grads_and_vars, name=None, skip_gradients_aggregation=False,
                            experimental_aggregate_gradients=True):  # fmt: skip
            if experimental_aggregate_gradients and not skip_gradients_aggregation:
                grads_and_vars = optimizer.aggregate_gradients(grads_and_vars)
            for transform in gradient_transformers:
                grads_and_vars = _where_there_are_any(transform)(grads_and_vars)
            return apply(grads_and_vars, name, skip_gradients_aggregation=True)

        optimizer.apply_gradients = apply_gradients
    return optimizer


def _where_there_are_any(change):
    """Without the pairs that have no gradient, of which the optimizer warns."""

    def changed(grads_and_vars):
        pairs = list(grads_and_vars)
        missing = [(g, v) for g, v in pairs if g is None]
        return [*change([(g, v) for g, v in pairs if g is not None]), *missing]

    return changed


def stock_lamb(learning_rate=0.001, weight_decay_rate=0.0, **arguments):
    """Our LAMB under the field names of Model Garden's `LAMBConfig`."""
    arguments = {"weight_decay": weight_decay_rate, **arguments}
    return transformed(tf_lamb.tf_keras.LAMB, learning_rate, **arguments)


def stock_lars(
    learning_rate=0.01, weight_decay_rate=0.0, eeta=0.001, classic_momentum=True, **arguments
):
    """Our LARS under the field names of Model Garden's `LARSConfig`, with its mathematics."""
    form = {"momentum_form": "inside", "denominator": "norm_of_sum"}
    if not classic_momentum:
        form = {"momentum_form": "outside", "denominator": "norm_of_update"}
    arguments = {"weight_decay": weight_decay_rate, "trust_coefficient": eeta, **form, **arguments}
    return transformed(tf_lamb.tf_keras.LARS, learning_rate, **arguments)


STOCK = {
    "lamb": entry(tf_lamb.tf_keras.LAMB, stock_lamb),
    "lars": entry(tf_lamb.tf_keras.LARS, stock_lars),
}
