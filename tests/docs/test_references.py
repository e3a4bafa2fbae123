"""What the pages say is held by a test is held by a test that is there."""

import re

from support.pages import PAGES, ROOT

TOP = r"(?<![\w/.-])(?:tests|benchmarks|tf_lamb|docs)/[\w/]+(?:\.\w+|/)"  # a file or a folder
ROOM = r"(?<![\w/.-])(?:core|api|tensorflow|tpu|keras|tf_keras|model_garden)/[\w/]+(?:\.py\b|/`)"


def test_the_files_and_tests_that_pages_name_exist():
    sources = {path: path.read_text() for path in ROOT.glob("tests/**/test_*.py")}
    names = set(re.findall(r"def (test_\w+)", "\n".join(sources.values())))
    gone = []
    for page in PAGES:
        text = page.read_text()
        # A room may be named without the folder that it lies in.
        named = {(path, "") for path in re.findall(TOP, text)}
        named |= {(path.rstrip("`"), room) for path in re.findall(ROOM, text)
                  for room in ("tf_lamb", "tests")}  # fmt: skip
        there = {path for path, folder in named if (ROOT / folder / path).exists()}
        gone += sorted(
            f"{page.name}: {path}"
            for path in {path for path, _ in named} - there
            if "NAME" not in path
        )
        known = names | {path.stem for path in sources}
        for name in re.findall(r"\btest_\w+", text):
            if not any(each.startswith(name) for each in known):  # `test_a_frontend_is_...`
                gone.append(f"{page.name}: {name}")
    assert not gone, "\n".join(gone)
