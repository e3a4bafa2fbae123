"""What a notebook shows of an answer."""

import base64
import html
import re


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
