"""What the pages say is held by a test is held by a test that is there."""

import re

from support.pages import PAGES, ROOT


def test_the_files_and_tests_that_pages_name_exist():
    sources = {path: path.read_text() for path in ROOT.glob("tests/**/test_*.py")}
    names = set(re.findall(r"def (test_\w+)", "\n".join(sources.values())))
    gone = []
    for page in PAGES:
        text = page.read_text()
        gone += [
            f"{page.name}: {path}"
            for path in re.findall(r"(?<![\w/])(?:tests|benchmarks|tf_lamb|docs)/[\w/]+\.\w+", text)
            if "NAME" not in path and not (ROOT / path).exists()
        ]
        known = names | {path.stem for path in sources}
        for name in re.findall(r"\btest_\w+", text):
            if not any(each.startswith(name) for each in known):  # `test_a_door_is_...`
                gone.append(f"{page.name}: {name}")
    assert not gone, "\n".join(gone)
