"""What a notebook shows of an answer, and what its first cell installs."""

import base64
import html
import importlib.util
import re
from unittest import mock


def pip_lines(source, folder, absent=("tf_lamb",), installs=True):
    """Runs a cell in IPython, with a pip in place of the real one.

    Args:
        source: Of the cell.
        folder: For IPython's files.
        absent: The packages that are missing before; all others seem to be installed.
        installs: Whether they are there when pip has run.

    Returns:
        The arguments of `%pip`, a line a call, and the exception of the cell, or None.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    lines = []
    find_spec = importlib.util.find_spec

    def found(name, *package):
        missing = name in absent and not (lines and installs)
        return None if missing else find_spec(name, *package) or find_spec("os")

    config = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell(config=config, ipython_dir=str(folder))
    shell.register_magic_function(lines.append, magic_name="pip")
    with mock.patch("importlib.util.find_spec", found):
        result = shell.run_cell(source)
    return lines, result.error_before_exec or result.error_in_exec


def assert_shown(answer):
    """Its text, and its plot as a PNG of 640 x 480.

    No figure of pyplot is made, which a notebook would show once more.

    Args:
        answer: With `_repr_html_`.
    """
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    shown = answer._repr_html_()
    assert plt.get_fignums() == before
    text, image = re.fullmatch("(?s)<pre[^>]*>(.*)</pre>(<img[^>]*>)", shown).groups()
    assert html.unescape(text) == str(answer) and "<" not in text
    (coded,) = re.findall('src="data:image/png;base64,([^"]+)"', image)
    png = base64.b64decode(coded)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    size = [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)]
    assert size == [640, 480]
