"""Runs the command `python -m tf_lamb.adopt SCRIPT.py`, which rewrites scripts for tf_lamb."""

import argparse
import difflib
import pathlib
import sys
from collections.abc import Sequence

_YAML_ADVICE = (
    "only scripts are rewritten. In a YAML write type: tf_lamb, or type: tf_lars; the trainer then "
    "names what else to change."
)
# File name extension that cannot be rewritten -> what to do instead.
_ADVICE_BY_SUFFIX = {
    ".ipynb": "save the notebook as a script first, by jupyter nbconvert --to script.",
    ".yaml": _YAML_ADVICE,
    ".yml": _YAML_ADVICE,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Shows each rewritten script as a diff, with notes, and writes it if `--write` is passed.

    Args:
        arguments: The command-line arguments. Defaults to None: those of the process.

    Returns:
        The exit status: 1 if a file cannot be read or is no Python script, else 0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tf_lamb.adopt",
        description="Rewrites a script of TensorFlow Addons' LAMB, Model Garden's LAMB or LARS, or "
        "Keras's Lamb or Muon for tf_lamb, and says for each call what changes in its steps.",
    )
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT.py")
    parser.add_argument("--write", action="store_true", help="write the scripts; else show a diff")
    parser.add_argument(
        "--same_steps", action="store_true",
        help="add the arguments that keep each step as before",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        from tf_lamb.adopt.script import adopt
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        parser.exit(1, "This needs libcst: pip install libcst.\n")

    exit_status, written_count, can_keep_steps, has_changes = 0, 0, False, False
    for path in options.scripts:
        if advice := _ADVICE_BY_SUFFIX.get(pathlib.Path(path).suffix):
            print(f"{path}: {advice}", file=sys.stderr)
            exit_status = 1
            continue
        try:
            # The script is read as bytes, because reading it as text would change its line ends.
            old_code = pathlib.Path(path).read_bytes().decode()
            adopted = adopt(old_code, same_steps=options.same_steps)
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            exit_status = 1
            continue
        can_keep_steps |= adopted.can_keep_steps
        has_changes |= adopted.code != old_code
        old_lines = old_code.splitlines(keepends=True)
        new_lines = adopted.code.splitlines(keepends=True)
        for line in difflib.unified_diff(old_lines, new_lines, path, path):
            print(line.rstrip("\r\n"))
        for note in adopted.notes:
            print(note)
        if not adopted.notes:
            print(f"{path}: no optimizer that this package replaces.")
        if options.write and adopted.code != old_code:
            pathlib.Path(path).write_bytes(adopted.code.encode())
            written_count += 1
    if options.write:
        print(f"Written: {written_count} of {len(options.scripts)}.")
    elif not exit_status:
        keep = " --same_steps adds the arguments that keep the steps." if can_keep_steps else ""
        text = (
            "Nothing was written; --write does it." if has_changes else "Nothing is to be written."
        )
        print(f"{text}{keep}")
    return exit_status


if __name__ == "__main__":
    sys.exit(main())
