"""How the pictures look: one colour and one marker an optimizer, told apart without colour, too.

The colours are those of Okabe and Ito, which colour-blind readers tell apart.
"""

STYLES = {
    "momentum": ("momentum", "#666666", "s"),
    "adamw": ("AdamW", "#0072B2", "o"),
    "lamb": ("LAMB", "#D55E00", "D"),
    "lans": ("LANS", "#E69F00", "^"),
    "muon": ("Muon", "#009E73", "v"),
    "lars": ("LARS", "#CC79A7", "P"),
    "autowarmup": ("LAMB, AutoWarmup", "#56B4E9", "X"),
    "adascale": ("momentum, AdaScale", "#000000", "*"),
}


def label(name):
    """What a reader calls it."""
    return STYLES[name][0]


def style(name):
    """Arguments of matplotlib's `plot`."""
    _, color, marker = STYLES[name]
    edge = {"mec": "white", "mew": 0.4}
    dashes = "--" if name == "autowarmup" else "-"
    return {"color": color, "marker": marker, "ms": 6, "ls": dashes, **edge}


def lost(name):
    """Likewise, of a run that is lost: an open mark."""
    _, color, _ = STYLES[name]
    return style(name) | {"ls": "", "mfc": "none", "mec": color, "mew": 1.2}


def pyplot():
    """Matplotlib's, without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "axes.prop_cycle": plt.cycler(color=[color for _, color, _ in STYLES.values()]),
        "grid.alpha": 0.3, "legend.frameon": False, "savefig.bbox": "tight", "savefig.dpi": 110,
    }  # fmt: skip
    return plt
