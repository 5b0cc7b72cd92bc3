"""Who makes room for whom."""

from __future__ import annotations

from engine.host.connection_limiter import ConnectionLimiter, ConnectionSlot


def test_the_longest_idle_connection_is_closed() -> None:
    gone: list[str] = []
    crowd = ConnectionLimiter(3)

    def enter(name: str) -> ConnectionSlot:
        place = crowd.enter(lambda: gone.append(name))
        assert place is not None
        return place

    first, second, third = enter("first"), enter("second"), enter("third")
    first.set_idle()
    fourth = enter("fourth")
    assert gone == ["second"]
    third.work()
    first.work()
    assert crowd.at_work == 2
    enter("fifth")
    assert gone == ["second", "fourth"]
    assert third in crowd
    third.set_idle()
    enter("sixth")
    enter("seventh")
    assert gone == ["second", "fourth", "fifth", "third"]
    for place in (second, fourth, third):  # who was dropped has no place to come back to
        place.set_idle()
        place.work()
        assert place not in crowd
    assert crowd.at_work == 1


def test_busy_connections_are_not_dropped() -> None:
    crowd = ConnectionLimiter(2)
    places = [crowd.enter(lambda: None), crowd.enter(lambda: None)]
    for place in places:
        assert place is not None
        place.work()
    assert crowd.enter(lambda: None) is None
    assert places[0] is not None
    places[0].release()
    places[0].release()
    assert crowd.enter(lambda: None) is not None
