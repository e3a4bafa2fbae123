"""Writes a folder of sample data, or reuses the folder if it already has the same data.

The file `data.json` is added last, so a folder that has it is complete. It holds the settings of
the data, and facts such as the number of examples.
"""

import contextlib
import json
import pathlib
import re
import shlex
import sys
import tempfile
import types

from absl import app, flags, logging

from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.common.console import Console

_NO_SETTINGS: types.MappingProxyType = types.MappingProxyType({})


def find_same_data(output_dir, files, settings):
    """Looks for data with the same settings in a folder, and prints a line if they are there.

    Args:
        output_dir: the folder.
        files: the names of all files of the data.
        settings: the settings of the data, as a dict.

    Returns:
        The content of data.json as a dict; None if the folder has none of the files.

    Raises:
        NotADirectoryError: if `output_dir` is a file.
        FileExistsError: if the folder has only some of the files, or data with other settings.
    """
    folder = pathlib.Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"output_dir {str(folder)!r} is a file; name a folder.")
    existing = [name for name in files if (folder / name).exists()]
    if not existing:
        return None
    if existing == list(files):
        facts = json.loads((folder / "data.json").read_text(encoding="utf-8"))
        if facts.items() >= settings.items():
            print(f"reusing {output_dir}: same data, same settings")
            return facts
    raise FileExistsError(
        f"output_dir {str(folder)!r} has {', '.join(existing)} of other data or settings; use "
        "another output_dir or delete the folder."
    )


@contextlib.contextmanager
def fill_folder(output_dir, files, facts):
    """Fills a folder with new data.

    Args:
        output_dir: the folder, which is created if it is missing.
        files: the names of its files, data.json last.
        facts: the content of data.json, a dict, which the `with` block may still change.

    Yields:
        A temporary folder, into which the `with` block writes all files but data.json. After the
        block the files are moved to `output_dir`; after an error they are removed.
    """
    output_dir = pathlib.Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    # An error leaves nothing behind. A killed process leaves this hidden folder, and no data.json.
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=output_dir) as temporary:
        partial_dir = pathlib.Path(temporary)
        yield partial_dir
        (partial_dir / "data.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        for name in files:
            (partial_dir / name).replace(output_dir / name)


def training_command(output_dir, facts, experiment, config_file, settings=_NO_SETTINGS):
    """Returns the command that trains on the data, with a config that comes with this package.

    Args:
        output_dir: the folder of the data.
        facts: the content of data.json.
        experiment: the name of the experiment.
        config_file: the name of the config.
        settings: key of data.json -> the settings of the experiment that have to have its value.
            Those to which the config gives another value are in the command. Defaults to none.
    """
    ((_, config),) = yamls.read_files([config_file])
    overrides = {
        f"task.{part}_data.input_path": f"{output_dir}/{part}.tfrecord"
        for part in ("train", "validation")
    }
    for key, paths in settings.items():
        overrides |= {path: facts[key] for path in paths if yamls.at(config, path) != facts[key]}
    override = ",".join(f"{path}={value}" for path, value in overrides.items())
    return "python -m tf_lamb.model_garden.train " + shlex.join([
        f"--experiment={experiment}", f"--config_file={config_file}", "--mode=train_and_eval",
        "--model_dir=MODEL_DIR", f"--params_override={override}",
    ])  # fmt: skip


def run(name, write, summary, experiment, config_file, settings=_NO_SETTINGS):
    """Runs `write` as a command with a flag for `output_dir` and each keyword-only argument.

    The help of each flag is read from the docstring of `write`.

    Args:
        name: the name of the command, which each of its error messages begins with.
        write: the function that writes the data; it takes keyword arguments and returns the content
            of data.json.
        summary: the format string of the line that is printed at the end, before the command that
            trains on the data. Its fields are keys of data.json.
        experiment, config_file, settings: As in `training_command`.
    """
    values = {"output_dir": None, **(write.__kwdefaults__ or {})}
    definers = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float}
    for key, default in values.items():  # flags are global, so they are defined only in a command
        define = definers.get(type(default), flags.DEFINE_string)
        (description,) = re.findall(rf"\n +{key}: (.*?)\n\n? +\w+:", write.__doc__, re.DOTALL)
        define(key, default, " ".join(description.split()))
        # --help lists only the flags that are registered for the command's module.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[key])
    flags.mark_flag_as_required("output_dir")

    def main(argv):
        if len(argv) > 1:
            raise app.UsageError(
                f"Unexpected argument {argv[1]!r}; each is --flag=value, with globs in quotes."
            )
        for key in values:
            values[key] = flags.FLAGS[key].value
            delattr(flags.FLAGS, key)  # as Model Garden defines some of the same flags
        logging.set_verbosity(logging.WARNING)  # Model Garden logs whole examples
        # `Console` sends stderr to a log. Python's own `sys.stderr` is set back to the terminal, so
        # that the progress bar of `write` is shown there.
        with Console() as console, contextlib.redirect_stderr(console.stream):
            try:
                facts = write(**values)
            except (ValueError, OSError, ModuleNotFoundError) as error:
                return f"{name}: {error}"  # to stderr, with exit status 1 and no traceback
        folder = values["output_dir"]
        command = training_command(folder, facts, experiment, config_file, settings)
        print(f"{folder}: {summary.format(**facts)}. To train on them: {command}")

    app.run(main)
