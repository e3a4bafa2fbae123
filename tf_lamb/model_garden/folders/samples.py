"""A folder of data that a command makes once, whole or not at all, and knows again.

`data.json` is the last of its files: it holds the settings and what is worth knowing of the rest.
"""

import contextlib
import hashlib
import json
import pathlib
import re
import shlex
import sys
import tempfile

from absl import app, flags, logging

from tf_lamb.model_garden.common.console import Console

OF_TEXT = ("vocab.txt", "train.tfrecord", "validation.tfrecord", "data.json")
OF_PICTURES = OF_TEXT[1:]


def sha256(value):
    """The hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def check_fraction(fraction):
    """Raises where the share for validation is none."""
    if not 0 < fraction < 1:
        raise ValueError(f"validation_fraction is {fraction}; use one between 0 and 1.")


def found(output_dir, files, settings, what):
    """Returns the facts of the same data made before, and says so, or None."""
    if facts := _find(pathlib.Path(output_dir), files, settings):
        print(f"reusing {output_dir}: same {what}, same settings")
    return facts


def _find(output_dir, files, settings):
    """Finds the same without printing; raises where the folder holds other data."""
    if output_dir.exists() and not output_dir.is_dir():
        raise NotADirectoryError(f"output_dir {str(output_dir)!r} is a file; name a folder.")
    present = [name for name in files if (output_dir / name).exists()]
    if not present:
        return None
    trouble = f"has {', '.join(present)} but no complete data set"
    if present == list(files):
        facts = json.loads((output_dir / "data.json").read_text(encoding="utf-8"))
        trouble = ", ".join(
            f"{key} was {facts.get(key)} and is now {value}"
            for key, value in settings.items()
            if facts.get(key) != value
        )
        if not trouble:
            return facts
    raise FileExistsError(
        f"output_dir {str(output_dir)!r} is taken: {trouble}. Nothing was "
        "written; use another output_dir or delete the folder."
    )


@contextlib.contextmanager
def filled(output_dir, files, settings, more):
    """Facts, and a folder to write the files to, which are moved on if all goes well.

    `data.json` is written here, from the facts as they are in the end.
    """
    output_dir = pathlib.Path(output_dir)
    facts = {**settings, "fingerprint": sha256(settings), **more}
    output_dir.mkdir(parents=True, exist_ok=True)
    # An error leaves nothing; a run that is killed leaves this hidden folder at most.
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=output_dir) as temporary:
        partial = pathlib.Path(temporary)
        yield partial, facts
        (partial / "data.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        # Raises if a run with other settings has ended meanwhile.
        _find(output_dir, files, settings)
        for name in files:
            (partial / name).replace(output_dir / name)


def command(experiment, config_file, output_dir, **settings):
    """The line that trains a small experiment on the data, with what its YAML says otherwise."""
    settings = {
        f"{part}_data.input_path": f"{output_dir}/{part}.tfrecord"
        for part in ("train", "validation")
    } | settings
    override = ",".join(f"task.{key}={value}" for key, value in settings.items())
    return " \\\n    ".join(
        [
            f"python -m tf_lamb.model_garden.train --experiment={experiment}",
            f"--config_file={shlex.quote(config_file)}",
            f"--mode=train_and_eval --model_dir={shlex.quote(f'{output_dir}/run')}",
            f"--params_override={shlex.quote(override)}",
        ]
    )


def run(name, write, summary, trained_by):
    """The command line of `write`: a flag for each argument, described in its docstring.

    Args:
      name: of the command, for its errors.
      write: makes the data. Takes `output_dir` and keywords, and returns the facts.
      summary: what to print in the end, to be formatted with the facts.
      trained_by: gives the line that trains on the data, from `output_dir` and the facts.
    """
    values = {"output_dir": None, **write.__kwdefaults__}
    # Only a command defines flags: they are global.
    define = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float}
    for key, default in values.items():
        (text,) = re.findall(rf"\n +{key}: (.*?)\n\n? +\w+:", write.__doc__, re.DOTALL)
        define.get(type(default), flags.DEFINE_string)(key, default, " ".join(text.split()))
        # --help lists what the command's own module defined, or what is called its own.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[key])
    flags.mark_flag_as_required("output_dir")

    def main(argv):
        if len(argv) > 1:
            raise app.UsageError(
                f"Unexpected argument {argv[1]!r}; each is --flag=value, with globs in quotes."
            )
        for key in values:
            values[key] = flags.FLAGS[key].value
            delattr(flags.FLAGS, key)  # Model Garden defines some of the same names
        logging.set_verbosity(logging.WARNING)  # Model Garden logs whole examples
        with Console() as console, contextlib.redirect_stderr(console.stream):  # a bar is shown
            try:
                facts = write(**values)
            except (ValueError, OSError, ModuleNotFoundError) as error:
                return f"{name}: {error}"  # to stderr, with exit status 1 and no traceback
        output_dir = values["output_dir"]
        print(f"{output_dir}: {summary.format(**facts)}. Train on it:\n")
        print(trained_by(output_dir, facts))

    app.run(main)
