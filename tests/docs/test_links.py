"""No link of a page is dead, and what it says is held by a test is held by one that is there."""

import re

import pytest
from support.pages import PAGES, ROOT, anchors, prose

TOP = r"(?<![\w/.-])(?:tests|benchmarks|tf_lamb|docs)/[\w/]+(?:\.\w+|/)"  # a file or a folder
MODULE = r"python -m (benchmarks[.\w]+)"  # a file, or a package that runs
ROOM = r"(?<![\w/.-])(?:core|api|tensorflow|tpu|keras|tf_keras|model_garden)/[\w/]+(?:\.py\b|/`)"
TESTS = [path for path in ROOT.glob("tests/**/test_*.py")]
NAMES = {path.stem for path in TESTS}.union(
    *(re.findall(r"def (test_\w+)", path.read_text()) for path in TESTS)
)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_every_link_leads_somewhere(page):
    dead = []
    named = re.findall(r"^\[[^\]^]+\]: (\S+)$", prose(page), re.MULTILINE)  # [name]: target
    for target in [*re.findall(r"\]\(([^)\s]+)\)", prose(page)), *named]:
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert not dead


@every_page
def test_every_name_of_a_link_is_defined(page):
    """`[text][name]` needs a line `[name]: target`, and each such line a use."""
    used = set(re.findall(r"\]\[([\w-]+)\]", prose(page)))
    assert used == set(re.findall(r"^\[([\w-]+)\]: ", prose(page), re.MULTILINE))


@every_page
def test_the_files_and_tests_that_a_page_names_exist(page):
    text = page.read_text()
    # A room may be named without the folder that it lies in.
    named = {path: ("",) for path in re.findall(TOP, text)}
    named |= {path.rstrip("`"): ("tf_lamb", "tests") for path in re.findall(ROOM, text)}
    gone = [
        path
        for path, folders in named.items()
        if "NAME" not in path and not any((ROOT / each / path).exists() for each in folders)
    ]
    for name in re.findall(MODULE, text):
        path = ROOT.joinpath(*name.rstrip(".").split("."))
        is_there = path.with_suffix(".py").exists() or (path / "__main__.py").exists()
        gone += [] if is_there else [name]
    for name in re.findall(r"\btest_\w+", text):  # `test_a_frontend_is_...`
        gone += [] if any(each.startswith(name) for each in NAMES) else [name]
    assert not gone
