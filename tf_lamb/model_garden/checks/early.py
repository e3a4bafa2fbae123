"""Checks before a command imports TensorFlow and Model Garden, which takes seconds."""

import importlib.util
import os
import pathlib
import re
import sys

from absl import flags

from tf_lamb.model_garden.errors import UserError, one_line, require, unknown

OURS = pathlib.Path(__file__).parents[1] / "experiments"
_REGISTERS = re.compile(r"""register_config_factory\(\s*["']([^"']+)["']""")


def begin(command: str) -> None:
    """Ends the process with one line if Model Garden is not installed."""
    with one_line(command, ModuleNotFoundError):
        require()
    # Model Garden is of tf_keras; without this, TensorFlow imports Keras 3 as well.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def show_in_help(*names: str) -> None:
    """Has `--help` list these flags; it lists only what the command's own module has defined."""
    for name in names:
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


def registered_in(folder: pathlib.Path) -> set[str]:
    """The names of the experiments that the files of a folder register, read from their source."""
    sources = (path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    return {name for source in sources for name in _REGISTERS.findall(source)}


def known_experiments() -> list[str]:
    """The names of all experiments, ours and Model Garden's."""
    # seam: tf-models-official 2.20.0. What `official.common.registry_imports` imports.
    (root,) = importlib.util.find_spec("official").submodule_search_locations
    theirs = (pathlib.Path(root, f) for f in ("nlp/configs", "vision/configs", "utils/testing"))
    return sorted(set().union(*map(registered_in, (OURS, *theirs))))


def check_names(named) -> None:
    """Raises `UserError` for an experiment or a file that is not there, or is no YAML.

    A file of this package may be named without its folder; its path takes the name's place.

    Args:
        named: flags or a stage, with `experiment`, which Gin may be about to register, and
            `config_file`, the paths of YAMLs; those that are not local are left for later.
    """
    from tf_lamb.model_garden.folders import yamls

    names, gin = known_experiments(), flags.FLAGS.gin_file or flags.FLAGS.gin_params
    if named.experiment not in names and not gin:
        raise UserError(unknown("--experiment", named.experiment, names))
    named.config_file = [yamls.found(path) for path in named.config_file or []]
    for path in named.config_file:
        if "://" not in path:
            yamls.mapping(pathlib.Path(path).read_bytes(), f"--config_file={path}")
