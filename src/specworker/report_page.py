"""A comparison as a page: one file, which loads nothing."""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specworker import comparison_cells as cells
from specworker import comparison_verdict as verdict
from specworker import report_chart
from specworker.comparison import Comparison
from specworker.speedup import SURE

#: Differences between texts that the page shows.
SHOWN = 20


def html(comparison: Comparison) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("specworker", "page"), autoescape=True, undefined=StrictUndefined
    )
    differences = [
        (one.concurrency, comparison.label(one.trial, one.variant), difference)
        for one in comparison.agreements
        for difference in one.differences
    ]
    return environment.get_template(
        "report.html"
    ).render(
        model=comparison.model,
        workload=comparison.workload,
        kind=_kind(comparison),
        conclusions=verdict.conclusions(comparison),
        pictures={
            # Drawn here; names within are drawn as outlines, not written as text.
            title: Markup(svg)  # noqa: S704
            for title, svg in report_chart.pictures(comparison).items()
        },
        margin=f"{comparison.margin:.0%}",
        sure=f"{SURE:.0%}",
        speed_columns=cells.SPEED,
        speed=cells.speed(comparison),
        acceptance_columns=cells.ACCEPTANCE,
        acceptance=cells.acceptance(comparison),
        left=cells.OF_TEXT,
        wraps=(cells.POSITIONS,),
        legend=cells.legend(comparison),
        findings=verdict.finding_lines(comparison),
        texts=verdict.agreement_lines(comparison),
        differences=differences[:SHOWN],
        more=len(differences[SHOWN:]),
        notes=comparison.notes,
        provenance=comparison.provenance,
    )


def _kind(comparison: Comparison) -> verdict.Kind:
    """What the page's first panel is marked as: the best that was found."""
    kinds = {one.kind for one in verdict.findings(comparison)}
    ordered: tuple[verdict.Kind, ...] = ("pays", "does_not_pay")
    return next((kind for kind in ordered if kind in kinds), "unclear")
