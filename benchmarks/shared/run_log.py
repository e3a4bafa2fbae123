"""The log of a benchmark that trains: a run is a line, and one that is there is not made again."""

import json
import os
import pathlib
import platform
import re
import subprocess


class Log:
    """The lines of a log, which has the machine among them."""

    def __init__(self, path):
        self.path, self.lines = path, []
        if os.path.exists(path):
            with open(path) as file:
                self.lines = [json.loads(line) for line in file]

    def note(self, line):
        """One line more; of a machine that the log does not have, a line before it."""
        with open(self.path, "a") as file:
            for each in ([] if machine() in [*self.lines, line] else [machine()]) + [line]:
                self.lines.append(each)
                file.write(json.dumps(each) + "\n")

    def run(self, what, make):
        """The line of a run, which is made now if it has to be: `make` gives what it came to."""
        if not any(what.items() <= line.items() for line in self.lines):
            self.note({**what, **make()})
        return next(line for line in self.lines if what.items() <= line.items())


def machine():
    """Where this runs, as a line of the log."""
    import importlib.metadata

    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":")[1].strip() for line in file if "model name" in line), "")
    versions = {name: importlib.metadata.version(name) for name in ("keras", "jax", "numpy")}
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), **versions}


def commit():
    """Of the checkout, and whether it has changes beside logs; $COMMIT where there is none."""
    if told := os.environ.get("COMMIT"):
        return told
    here = str(pathlib.Path(__file__).parents[1])  # where the logs are

    def git(*arguments):
        return subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True)

    changed = git("diff", "--quiet", "HEAD", "--", ":/", ":!logs").returncode
    return git("describe", "--always").stdout.strip() + "-dirty" * changed


def without_folders(text):
    """A message without the folders of this machine."""
    return re.sub(r"/[\w./-]*/(?=[\w.-]+)", "", text)
