import pytest

from specworker.trial_budget import AT_ONCE, Budget, CatchingUp


def test_a_budget_is_a_share_of_the_steps_up_to_some_at_once() -> None:
    budget = Budget(0.01, 12.0)
    assert not budget.affords(0.0, 0.01)  # nothing was timed yet
    budget.earn(1000, 0.01)
    budget.grant()
    assert budget.affords(0.12, 0.01)
    assert not budget.affords(0.13, 0.01)
    budget.pay(0.10, 0.01)
    assert not budget.affords(0.03, 0.01)
    budget.earn(150, 0.01)
    assert budget.affords(0.03, 0.01)
    assert not budget.affords(0.03, 0.01, reserve=1)
    budget.earn(100_000, 0.01)
    assert not budget.affords(0.13, 0.01)


def test_a_trial_of_slow_steps_costs_as_many_steps_as_one_of_quick_ones() -> None:
    budget = Budget(0.01, 12.0)
    budget.grant()
    budget.pay(1.1, 0.1)
    assert budget.affords(0.01, 0.01)
    assert not budget.affords(0.02, 0.01)


def test_another_size_of_the_batch_has_some_of_its_own() -> None:
    budget = Budget(0.01, 12.0)
    budget.grant()
    budget.grant()
    assert not budget.affords(0.13, 0.01)
    budget.pay(0.20, 0.01)
    assert not budget.affords(0.0, 0.01)
    budget.grant()
    assert budget.affords(0.06, 0.01)  # whatever the others cost
    assert not budget.affords(0.07, 0.01)


def test_what_was_lost_is_told_as_a_share_of_the_time() -> None:
    budget = Budget(0.01, 12.0)
    budget.pay(1.0, 0.01)
    assert budget.lost == 0.0
    budget.grant()
    budget.earn(100, 0.01)
    budget.pay(0.2, 0.01)
    assert budget.lost == pytest.approx(0.2)
    assert not budget.affords(0.0, 0.01)  # more than there was


def test_catching_up_costs_what_it_lately_did_by_the_token() -> None:
    found = CatchingUp()
    assert found.cost(1000) == 0.0
    found.add(0.2, 100)
    assert found.cost(200) == pytest.approx(0.4)
    for _ in range(20):
        found.add(0.1, 100)
    assert found.cost(200) == pytest.approx(0.2)
    found.add(-1.0, 100)  # quicker than usual by chance
    assert 0 < found.cost(200) < 0.2


def test_a_few_tokens_are_read_in_the_time_of_one() -> None:
    found = CatchingUp()
    found.add(0.03, 1)
    assert found.cost(1) == found.cost(AT_ONCE) == pytest.approx(0.03)
    assert found.cost(10 * AT_ONCE) == pytest.approx(0.3)
    assert found.cost(0) == 0.0
