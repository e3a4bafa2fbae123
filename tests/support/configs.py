"""The files in `model_garden_configs`: which there are, and each of them parsed, once."""

import functools
import glob
import os

from official.core import train_utils
from support.garden import ROOT

from tf_lamb.model_garden.experiments import parsing

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
    flags = train_utils.ParseConfigOptions(experiment=experiment_of(path), config_file=[path])
    return parsing.parse(flags)
