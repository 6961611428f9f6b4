"""A comparison as a person reads it in a terminal."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specworker import comparison_cells as cells
from specworker import comparison_verdict as verdict
from specworker.comparison import Comparison

#: Columns below which figures that share a cell stand one above the other.
NARROW = 100
BREAKS = {", ms": "\nms", " / ": " /\n", " (": "\n("}


def of(comparison: Comparison) -> RenderableType:
    """The figures, what was accepted, whether the texts are the same, and the verdict."""
    tables: list[RenderableType] = [_Table(cells.SPEED, cells.speed(comparison))]
    if drafting := cells.acceptance(comparison):
        tables.append(_Table(cells.ACCEPTANCE, drafting))
    return Group(
        Text(f"{comparison.model}, workload {comparison.workload}", style="bold"),
        *tables,
        Text(cells.legend(comparison), style="dim"),
        *_block("By requests at once:", verdict.finding_lines(comparison)),
        *_block("Texts:", verdict.agreement_lines(comparison)),
        *_block("To know:", comparison.notes),
        *_block("Verdict:", verdict.conclusions(comparison), style="bold"),
    )


class _Table:
    """A table in as many columns as there are, without a cell that is cut short."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._columns = columns
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_narrow = options.max_width < NARROW

        def broken(text: str) -> Text:
            for whole, parts in BREAKS.items() if is_narrow else ():
                text = text.replace(whole, parts)
            return Text(text)

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for name in self._columns:
            is_text = name in cells.OF_TEXT
            table.add_column(
                broken(name),
                justify="left" if is_text else "right",
                no_wrap=not is_text,
                overflow="fold",
            )
        before = ""
        for row in self._rows:
            if before not in ("", row[0]):
                table.add_section()
            before = row[0]
            pairs = zip(self._columns, row, strict=True)
            table.add_row(
                *(Text(text) if name in cells.OF_TEXT else broken(text) for name, text in pairs)
            )
        yield table


def _block(title: str, lines: Iterable[str], style: str = "") -> list[RenderableType]:
    """Lines under a title; nothing where there are none."""
    told = [Padding(Text(line, style=style), (0, 0, 0, 2)) for line in lines]
    return [Text(f"\n{title}"), *told] if told else []
