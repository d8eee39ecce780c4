"""One wake-up for all pending items, and always one."""

from engine.runs.channel import DeltaChannel


class Waker:
    """Counts how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


def test_only_the_first_pending_item_wakes_the_consumer() -> None:
    wake = Waker()
    channel: DeltaChannel[int] = DeltaChannel(wake)
    channel.put(1)
    assert wake.calls == 1
    channel.put(2)
    channel.extend([3, 4])
    assert wake.calls == 1
    assert channel.drain() == [1, 2, 3, 4]


def test_item_after_a_drain_causes_another_wakeup() -> None:
    wake = Waker()
    channel: DeltaChannel[int] = DeltaChannel(wake)
    channel.extend([1, 2])
    assert channel.drain() == [1, 2]
    channel.put(3)
    assert wake.calls == 2
    assert channel.drain() == [3]


def test_drain_of_an_empty_channel_keeps_wake_ups_working() -> None:
    wake = Waker()
    channel: DeltaChannel[int] = DeltaChannel(wake)
    assert channel.drain() == []
    channel.put(1)
    assert wake.calls == 1


def test_item_put_by_the_wake_up_is_not_lost() -> None:
    taken: list[int] = []

    def consume() -> None:
        taken.extend(channel.drain())
        if len(taken) < 3:
            channel.put(len(taken) + 1)

    channel: DeltaChannel[int] = DeltaChannel(consume)
    channel.put(1)
    assert taken == [1, 2, 3]


def test_item_put_during_a_drain_causes_another_wakeup() -> None:
    # Disarm first, take the items second: the other way round no wake-up would follow.
    wake = Waker()
    channel: DeltaChannel[str] = DeltaChannel(wake)

    class Items(list[str]):
        def __delitem__(self, key: object) -> None:
            super().__delitem__(key)  # type: ignore[arg-type]
            channel.put("late")

    channel.pending = Items()
    channel.put("early")
    assert channel.drain() == ["early"]
    assert wake.calls == 2


def test_detached_channel_does_not_wake_and_keeps_its_items() -> None:
    wake = Waker()
    channel: DeltaChannel[int] = DeltaChannel(wake)
    channel.put(1)
    channel.detach()
    assert channel.drain() == [1]
    channel.put(2)
    assert wake.calls == 1
    assert channel.drain() == [2]
