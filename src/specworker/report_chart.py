"""A comparison as pictures: speed over concurrency, and acceptance by position.

They are drawn once, in the colours of paper. On a page each colour is a variable of the page's
own style, so that it follows the page into the dark.
"""

import io
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from specworker.acceptance import Acceptance
from specworker.comparison import Comparison
from specworker.measured import OFF
from specworker.speedup import SURE

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

Draw = Callable[[Comparison, Axes], None]

#: The page's variables by the colours that are drawn with. Those of the variants differ in
#: lightness as well, and each has a marker of its own: hue alone tells nothing.
PAPER, INK, SOFT, LINE = "#ffffff", "#1b1f22", "#575d63", "#dddad2"
VARIANTS = ("#0067a8", "#c14a00", "#00785c", "#94407f", "#7d6300", "#3a3f9e")
PAGE = {PAPER: "panel", INK: "ink", SOFT: "soft", LINE: "line"} | {
    colour: f"variant-{number}" for number, colour in enumerate(VARIANTS)
}
MARKERS = "sD^vP*X"
#: Characters of a line below the picture, and how many it has at most.
FOOTER, FOOTER_LINES = 210, 3
#: Characters of labels that stand side by side below a picture.
LEGEND_WIDTH = 45
STYLE: "dict[RcKeyType, Any]" = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "text.color": INK,
    "text.parse_math": False,  # names may hold a dollar
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "grid.color": LINE,
    "legend.frameon": False,
    "svg.hashsalt": "specworker",
}


@dataclass(frozen=True)
class Picture:
    """A picture for a page.

    Attributes:
        title: what it shows.
        alternative: the same for those who do not see it.
        svg: an element whose colours are the page's variables.
    """

    title: str
    alternative: str
    svg: str


def png(comparison: Comparison) -> bytes:
    """All pictures in one, with the provenance below it and in its text chunks."""
    given = {
        name: value if isinstance(value, str) else "; ".join(value)
        for name, value in comparison.provenance.items()
    }
    lines = textwrap.wrap(
        "; ".join(f"{name}: {value}" for name, value in given.items()),
        FOOTER,
        max_lines=FOOTER_LINES,
        placeholder=" … (all of it is in the text chunks of this file)",
    )
    title = f"{comparison.model}, workload {comparison.workload}"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 5.6), layout=ConstrainedLayoutEngine(w_pad=0.12))
        parts = figure.subfigures(2, 1, squeeze=False, height_ratios=[24, len(lines) + 1])
        drawing, foot = parts[:, 0]
        panels = _panels(comparison)
        places = drawing.subplots(1, len(panels), squeeze=False)[0]
        for axes, (name, draw) in zip(places, panels.items(), strict=True):
            draw(comparison, axes)
            axes.set_title(name)
        drawing.suptitle(title, fontweight="bold", x=0.008, ha="left")
        _legend(drawing)
        foot.text(0.008, 0.9, "\n".join(lines), fontsize=7, color=SOFT, va="top")
        drawn = io.BytesIO()
        chunks = {"Title": title, "Software": "specworker", **given}
        figure.savefig(drawn, format="png", dpi=150, metadata=chunks)
    return drawn.getvalue()


def pictures(comparison: Comparison) -> dict[str, str]:
    """By its title, each picture for itself: an SVG element in the page's colours."""
    return {
        title: _svg(comparison, draw, f"p{number}")
        for number, (title, draw) in enumerate(_panels(comparison).items())
    }


def _svg(comparison: Comparison, draw: Draw, name: str) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.6), layout="constrained")
        draw(comparison, figure.subplots())
        _legend(figure)
        drawn = io.StringIO()
        nobody = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", metadata=nobody)
    text = drawn.getvalue()
    svg = text[text.index("<svg") :].replace("<svg ", '<svg aria-hidden="true" ', 1)
    for colour, variable in PAGE.items():
        svg = svg.replace(colour, f"var(--{variable})")
    # Other pictures on the page have the same names.
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", svg)


def _panels(comparison: Comparison) -> dict[str, Draw]:
    """What is drawn, by its title; acceptance only where something was drafted."""
    panels: dict[str, Draw] = {"Tokens per second": _rates, "Times as fast as off": _speedups}
    if any(row.counts.drafts for row in comparison.rows):
        panels["Acceptance by position"] = _acceptance
    return panels


def _rates(comparison: Comparison, axes: Axes) -> None:
    for trial, variant in comparison.variants:
        rates = {
            row.concurrency: row.tokens_per_second for row in comparison.of_variant(trial, variant)
        }
        points = {at: (one.median, one.low, one.high) for at, one in rates.items()}
        _line(comparison, axes, (trial, variant), points)
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    axes.set_ylabel("tokens/s, all requests together")
    _over_concurrency(comparison, axes)


def _speedups(comparison: Comparison, axes: Axes) -> None:
    axes.axhline(1, color=SOFT, linewidth=1.2)
    axes.axhspan(1, 1 + comparison.margin, color=LINE, alpha=0.6, linewidth=0)
    for trial, variant in comparison.variants:
        rows = comparison.of_variant(trial, variant)
        speedups = {row.concurrency: row.speedup for row in rows if row.speedup}
        if not speedups:
            continue
        points = {
            at: (one.median, *((one.lower, one.upper) if one.is_settled else (one.low, one.high)))
            for at, one in speedups.items()
        }
        _line(comparison, axes, (trial, variant), points)
        promised = {row.concurrency: row.predicted for row in rows if row.predicted}
        places = [_place(comparison, (trial, variant), at) for at in promised]
        look = _look(comparison, (trial, variant)) | {"linestyle": "none", "label": None}
        axes.plot(places, [*promised.values()], **look, markerfacecolor="none", alpha=0.9)
    bottom, top = axes.get_ylim()
    measured = [row.speedup.high for row in comparison.rows if row.speedup]
    highest = max(1.0, *measured, *(row.predicted or 0.0 for row in comparison.rows))
    # An interval of two rounds may be so wide that nothing else could be seen.
    axes.set_ylim(min(0.8, max(0.0, bottom)), min(top, 2 * highest))
    axes.set_ylabel(f"times, bars: {SURE:.0%} interval; hollow: predicted")
    _over_concurrency(comparison, axes)


def _acceptance(comparison: Comparison, axes: Axes) -> None:
    most = 1
    for trial, variant in comparison.variants:
        rows = comparison.of_variant(trial, variant)
        counts = sum((row.counts for row in rows), Acceptance())
        if not counts.drafts:
            continue
        shares = counts.rate_by_position
        most = max(most, len(shares))
        look = _look(comparison, (trial, variant))
        axes.plot(range(1, len(shares) + 1), [100 * share for share in shares], **look)
    axes.set_ylim(0, 100)
    axes.set_xlim(0.5, most + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylabel("% of drafts whose token was accepted")
    axes.set_xlabel("position in the draft, all concurrencies together")
    axes.grid(axis="y")


def _line(
    comparison: Comparison,
    axes: Axes,
    variant: tuple[str, str],
    points: Mapping[int, tuple[float, float, float]],
) -> None:
    """Points over concurrency, each with where its bar begins and ends."""
    found = [*points.values()]
    axes.errorbar(
        [_place(comparison, variant, concurrency) for concurrency in points],
        [point for point, _, _ in found],
        yerr=[
            [max(0.0, point - low) for point, low, _ in found],
            [max(0.0, high - point) for point, _, high in found],
        ],
        capsize=3,
        **_look(comparison, variant),
    )


def _place(comparison: Comparison, variant: tuple[str, str], concurrency: int) -> float:
    """Where a variant's point is: `off` at its concurrency, the others on both sides."""
    at = comparison.concurrencies.index(concurrency)
    drafting = _drafting(comparison)
    if variant not in drafting:
        return at
    return at + min(0.08, 0.5 / len(drafting)) * (drafting.index(variant) - (len(drafting) - 1) / 2)


def _drafting(comparison: Comparison) -> list[tuple[str, str]]:
    return [one for one in comparison.variants if one[1] != OFF]


def _look(comparison: Comparison, variant: tuple[str, str]) -> dict[str, Any]:
    label = comparison.label(*variant)
    if variant[1] == OFF:
        return {"label": label, "color": SOFT, "marker": "o", "linestyle": "--"}
    number = _drafting(comparison).index(variant)
    colour = VARIANTS[number % len(VARIANTS)]
    return {"label": label, "color": colour, "marker": MARKERS[number % len(MARKERS)]}


def _over_concurrency(comparison: Comparison, axes: Axes) -> None:
    concurrencies = comparison.concurrencies
    axes.set_xticks(range(len(concurrencies)), [f"{number}" for number in concurrencies])
    axes.set_xlim(-0.5, len(concurrencies) - 0.5)
    axes.set_xlabel("requests at once")
    axes.grid(axis="y")


def _legend(figure: Figure | SubFigure) -> None:
    shown: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        for label, handle in zip(labels, handles, strict=True):
            shown.setdefault(label, handle)
    longest = max((len(label) for label in shown), default=1)
    fitting = max(1, LEGEND_WIDTH * len(figure.axes) // longest)
    columns = min(fitting, len(shown) or 1)
    figure.legend([*shown.values()], [*shown], loc="outside lower center", ncols=columns)
