"""A training whose batch grows, for tf_keras."""

import tf_keras

from tf_lamb.api.stages.checks import replicas_of
from tf_lamb.api.stages.fit import make_fit_stages
from tf_lamb.tensorflow import feeding
from tf_lamb.tf_keras import schedules


def _fed(model, batches, first):
    return feeding.dataset(batches, first)


fit_stages = make_fit_stages(tf_keras, schedules, replicas_of, _fed)

__all__ = ["fit_stages"]
