import pytest

from specworker.inside_vllm import change_log
from specworker.inside_vllm.change_log import ChangeLog


def test_changes_are_logged_and_not_more_than_one_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(change_log.logger, "info", lambda text, *args: said.append(text % args))
    now = [100.0]
    log = ChangeLog(lambda: now[0])
    for text in ("K 0 → 4: one", "K 4 → 0: two", "K 0 → 2: three"):
        log(text)
    now[0] += change_log.QUIET
    log("K 2 → 1: four")
    assert said == [
        "K 0 → 4: one",
        "K 2 → 1: four (2 changes before it not logged)",
    ]
