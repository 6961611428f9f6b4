"""What tuning found, in words, as a table and as JSON."""

import json
from io import StringIO

from rich.console import Console

from specworker import tuning, tuning_report
from specworker.candidates import Refused
from specworker.speedup import Speedup
from specworker.tuning import Cell, Confirmed, Setting, Tried
from specworker.tuning_report import Tuned

REFUSED = (Refused("mtp", "SPECULATIVE_METHOD=mtp: there are no such layers"),)
NGRAM = Tried("ngram 2-4", {1: {0: Cell(1, 0.02), 4: Cell(3, 0.03)}, 4: {0: Cell(1, 0.02)}})
SUFFIX = Tried("suffix", {1: {0: Cell(1, 0.02), 8: Cell(1.05, 0.02)}, 4: {0: Cell(1, 0.02)}})


def confirmed(at_one: float, at_four: float) -> Confirmed:
    speedups = {1: Speedup.of([at_one] * 3), 4: Speedup.of([at_four] * 3)}
    return Confirmed(Setting("ngram 2-4", {1: 4, 4: 4}), speedups, True, 0.1)


def tuned(*found: Confirmed) -> Tuned:
    return Tuned("acme/model", (SUFFIX, NGRAM), REFUSED, found, tuning.winner(found))


def test_what_is_chosen_is_said_with_its_figures_beside_off() -> None:
    assert tuning_report.verdict(tuned(confirmed(1.9, 1.25))) == (
        "ngram 2-4 K=4: 1.90 and 1.25 times as fast as without speculation, with 1 and 4 requests "
        "at once"
    )
    assert tuning_report.verdict(tuned(confirmed(1.9, 0.8))) == (
        "ngram 2-4 K=4,0 by batch: 1.90 times as fast as without speculation, with 1 request at "
        "once; K = 0 from 4 on, where it did not pay: 0.80 (0.80–0.80) at 4"
    )


def test_no_speculation_is_said_with_the_reason() -> None:
    text = tuning_report.verdict(tuned(confirmed(1.01, 0.8)))
    assert text == (
        "no speculation: nothing gains enough. ngram 2-4: in turns with off it did not pay: "
        "1.01 (1.01–1.01) at 1, 0.80 (0.80–0.80) at 4 at once"
    )


def test_the_table_has_what_was_tried_and_why_it_lost() -> None:
    out = StringIO()
    Console(file=out, width=120).print(tuning_report.table(tuned(confirmed(1.9, 1.25))))
    text = " ".join(out.getvalue().split())
    assert "ngram 2-4 4 at 1, 0 at 4 chosen: ngram 2-4 K=4" in text
    assert "suffix 0 at 1, 0 at 4 1.05 times as fast at best, with K=8 at 1 at once" in text
    assert "mtp not tried: SPECULATIVE_METHOD=mtp" in text


def test_programs_get_the_same() -> None:
    chosen = {"SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "4"}
    found = tuning_report.as_object(tuned(confirmed(1.9, 1.25)), chosen, {"device": "CPU"})
    assert json.loads(json.dumps(found)) == found
    assert (found["environment"], found["schedule"][0][2]) == (chosen, 4)
    suffix, ngram = found["tried"]
    assert (ngram["lost"], ngram["best"]) == (None, {"1": 4, "4": 0})
    assert suffix["lost"].startswith("1.05 times as fast at best")
    assert {"concurrency": 1, "num_speculative_tokens": 4}.items() <= ngram["cells"][1].items()
    assert found["not_tried"] == [
        {"name": "mtp", "reason": "SPECULATIVE_METHOD=mtp: there are no such layers"}
    ]
    assert tuning_report.as_object(tuned(), {}, {})["schedule"] is None
