"""The table of other packages' words, as docs/moving_in.md has it between two marks.

`PYTHONPATH=.:tests python -m support.words` writes it anew.
"""

from support.pages import ROOT

from tf_lamb.api.optimizers.words import WORDS

PAGE = ROOT / "docs" / "moving_in.md"
BEGIN, END = "<!-- words: tests/support/words.py writes this table -->\n", "<!-- /words -->\n"


def row(entry):
    """A line of the table."""
    code = {None: "cannot be had", "": "nothing"}.get(entry.replacement, f"`{entry.replacement}`")
    if entry.optimizer:
        code = f"`{entry.optimizer}(...)`"
    same = " or ".join(f"`{value!r}`" for value in entry.noop)
    notes = [entry.note, f"With {same} write nothing." if same else ""]
    cells = [
        f"`{entry.foreign_arguments}`",
        entry.packages,
        ", ".join(entry.classes),
        code,
        " ".join(filter(None, notes)),
    ]
    return f"| {' | '.join(cell for cell in cells)} |\n"


def lines():
    """The whole table."""
    header = (
        "| argument there | of | in | write | what changes, or why not |\n|---|---|---|---|---|\n"
    )
    return header + "".join(map(row, WORDS))


def parts(text):
    """What stands before the table, the table, and what stands behind."""
    before, rest = text.split(BEGIN)
    shown, after = rest.split(END)
    return before, shown, after


if __name__ == "__main__":
    before, _, after = parts(PAGE.read_text())
    PAGE.write_text(f"{before}{BEGIN}{lines()}{END}{after}")
