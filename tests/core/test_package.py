"""What the package says of itself is said in one place."""

import re

from support.pages import ROOT

import tf_lamb


def test_the_citation_has_the_version():
    (version,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == tf_lamb.__version__
