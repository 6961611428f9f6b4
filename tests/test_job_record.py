from typing import Any

from specworker.job_record import JobRecord


def test_the_line_tells_what_is_known_and_leaves_out_what_is_not() -> None:
    record = JobRecord(route="POST /v1/completions", status=200)
    assert record.line.startswith("route=POST /v1/completions status=200 total=")
    record.first_output()
    record.note(
        {
            "usage": {"prompt_tokens": 7, "completion_tokens": 5},
            "metrics": {"speculative_decoding": {"mean_acceptance_length": 2.25}},
        }
    )
    for part in ("prompt=7", "completion=5", "ttft=0.", "tokens/s=", "acceptance length=2.25"):
        assert part in record.line


def test_the_usage_of_a_response_in_the_other_words_is_understood() -> None:
    record = JobRecord()
    record.note({"usage": {"input_tokens": 3, "output_tokens": 2}})
    assert "prompt=3 completion=2" in record.line


def test_a_prediction_is_told_by_what_of_it_came_true() -> None:
    record = JobRecord()
    details: dict[str, Any] = {"accepted_prediction_tokens": 7, "rejected_prediction_tokens": 2}
    record.note({"usage": {"completion_tokens": 9, "completion_tokens_details": details}})
    assert " prediction accepted=7/9" in record.line
    for without in (None, {"reasoning_tokens": 1}):
        record.note({"usage": {"completion_tokens": 9, "completion_tokens_details": without}})
        assert "prediction" not in record.line


def test_only_the_first_output_counts_for_the_time_to_it() -> None:
    record = JobRecord()
    record.first_output()
    first = record.ttft
    record.first_output()
    assert record.ttft == first


def test_notes_stay_whatever_events_follow() -> None:
    record = JobRecord()
    record.note({"metrics": {"notes": ["speculation is off"]}})
    record.note({"metrics": {"speculative_decoding": {"mean_acceptance_length": 2.25}}})
    assert record.notes == ["speculation is off"]


def test_what_holds_no_figures_changes_nothing() -> None:
    record = JobRecord()
    nothing: tuple[Any, ...] = (None, "text", [], {}, {"usage": None, "metrics": None})
    for body in nothing:
        record.note(body)
    assert (record.usage, record.speculation, record.notes) == ({}, {}, [])
