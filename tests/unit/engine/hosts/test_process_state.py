"""The table of the states of the engine's process."""

from __future__ import annotations

import itertools

import pytest

from engine.hosts.process_state import NEXT_STATES, ProcessState, check_transition

ALLOWED = {(state, following) for state, nexts in NEXT_STATES.items() for following in nexts}
REFUSED = set(itertools.product(ProcessState, repeat=2)) - ALLOWED


def test_table_has_each_state() -> None:
    assert set(NEXT_STATES) == set(ProcessState)


@pytest.mark.parametrize(("state", "following"), sorted(ALLOWED))
def test_check_transition_passes_what_the_table_has(
    state: ProcessState, following: ProcessState
) -> None:
    check_transition(state, following)


@pytest.mark.parametrize(("state", "following"), sorted(REFUSED))
def test_check_transition_names_both_states_when_it_refuses(
    state: ProcessState, following: ProcessState
) -> None:
    message = f"cannot become {following} while it is {state}"
    with pytest.raises(RuntimeError, match=message):
        check_transition(state, following)


def test_only_a_started_or_retiring_process_becomes_loaded() -> None:
    before = {state for state, following in ALLOWED if following is ProcessState.LOADED}
    assert before == {ProcessState.STARTING, ProcessState.RETIRING}


def test_each_state_is_reached_from_unloaded_and_ends_in_closed() -> None:
    reached = {ProcessState.UNLOADED}
    for _ in ProcessState:
        reached |= {following for state, following in ALLOWED if state in reached}
    assert reached == set(ProcessState)
    assert all(ProcessState.CLOSED in nexts for nexts in NEXT_STATES.values())
    assert NEXT_STATES[ProcessState.CLOSED] == {ProcessState.CLOSED}
