"""A comparison as files: for people a page and a picture, for programs JSON and CSV."""

import json
from pathlib import Path

from specworker import atomic, report_chart, report_data, report_page
from specworker.comparison import Comparison


def write(folder: Path, comparison: Comparison) -> list[Path]:
    """Write the files to `folder`, each in one piece, the page last.

    Returns:
        Where they are.
    """
    data = json.dumps(report_data.as_object(comparison), indent=2, ensure_ascii=False)
    contents: dict[str, str | bytes] = {
        "comparison.json": f"{data}\n",
        "comparison.csv": report_data.rows_csv(comparison),
        "rounds.csv": report_data.rounds_csv(comparison),
        "comparison.png": report_chart.png(comparison),
        "comparison.html": report_page.html(comparison),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return [atomic.write(folder / name, content) for name, content in contents.items()]
