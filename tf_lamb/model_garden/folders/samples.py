"""A folder of data that a command makes once, whole or not at all, and knows again.

`data.json` is the last of its files: it holds the settings and what is worth knowing of the rest.
"""

import contextlib
import json
import pathlib
import re
import sys
import tempfile

from absl import app, flags, logging

from tf_lamb.model_garden.common.console import Console


def found(output_dir, files, settings):
    """Returns the facts of the same data made before, and says so, or None; refuses other data."""
    folder = pathlib.Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"output_dir {str(folder)!r} is a file; name a folder.")
    present = [name for name in files if (folder / name).exists()]
    if not present:
        return None
    if present == list(files):
        facts = json.loads((folder / "data.json").read_text(encoding="utf-8"))
        if facts.items() >= settings.items():
            print(f"reusing {output_dir}: same data, same settings")
            return facts
    raise FileExistsError(
        f"output_dir {str(folder)!r} has {', '.join(present)} of other data or settings; use "
        "another output_dir or delete the folder."
    )


@contextlib.contextmanager
def filled(output_dir, files, facts):
    """Yields a folder for the files, which are moved on, with the facts, if all goes well."""
    output_dir = pathlib.Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    # An error leaves nothing; a run that is killed leaves this hidden folder at most.
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=output_dir) as temporary:
        partial = pathlib.Path(temporary)
        yield partial
        (partial / "data.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        for name in files:
            (partial / name).replace(output_dir / name)


def run(name, write, summary):
    """Runs `write` as a command, a flag for each documented argument, and prints the summary."""
    values = {"output_dir": None, **(write.__kwdefaults__ or {})}
    kinds = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float}
    for key, default in values.items():  # global, so that only a command defines them
        define = kinds.get(type(default), flags.DEFINE_string)
        (text,) = re.findall(rf"\n +{key}: (.*?)\n\n? +\w+:", write.__doc__, re.DOTALL)
        define(key, default, " ".join(text.split()))
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
        print(f"{values['output_dir']}: {summary.format(**facts)}")

    app.run(main)
