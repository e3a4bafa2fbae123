"""The files in `model_garden_configs`: which there are, and each of them parsed, once."""

import functools
import glob
import os

from support.batch_flags import Flags
from support.garden import ROOT

from tf_lamb.model_garden.experiments import parsing
from tf_lamb_extras.adversarial import model_garden  # noqa: F401  (registers its experiment)

YAMLS = {
    os.path.basename(path): path
    for path in sorted(glob.glob(os.path.join(ROOT, "model_garden_configs", "*.yaml")))
}


@functools.cache
def header(path):
    with open(path) as file:
        return "".join(line for line in file if line.startswith("#"))


def experiment_of(path):
    """The first line names it."""
    return header(path).removeprefix("#").split(":")[0].strip()


@functools.cache
def parsed(path):
    """The experiment; nobody changes it, but `replace` gives a copy."""
    params, _ = parsing.parse(Flags(experiment_of(path), [path]))
    return params
