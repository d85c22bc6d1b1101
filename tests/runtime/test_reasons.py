"""What a node says is wrong with it."""

import pytest

from distributedlog.runtime.reasons import (
    HEALED_S,
    REASONS_MAX,
    TEXT_CHARACTERS_MAX,
    Over,
    Reasons,
    reasons_of,
)


def test_a_reason_is_replaced_and_taken_back_by_its_name() -> None:
    reasons = Reasons()
    reasons.set("space", "journal disk: 3 MB free")
    reasons.set("limbo", "lost data")
    reasons.set("space", "journal disk: 2 MB free")

    assert reasons.texts() == ("journal disk: 2 MB free", "lost data")

    reasons.clear("space")
    reasons.clear("never set")
    assert reasons.texts() == ("lost data",)


def test_what_nobody_tells_is_asked_at_each_look() -> None:
    reasons = Reasons()
    answers = ["", "it ends soon", ""]
    reasons.ask(lambda: answers.pop(0))
    reasons.set("space", "full")

    assert reasons.texts() == ("full",)
    assert reasons.texts() == ("full", "it ends soon")
    assert reasons.texts() == ("full",)


def test_however_much_goes_wrong_few_short_lines_are_told() -> None:
    reasons = Reasons()
    for number in range(REASONS_MAX + 5):
        reasons.set(f"{number}", f"{number}\n" + "x" * 2 * TEXT_CHARACTERS_MAX)

    told = reasons.texts()

    assert len(told) == REASONS_MAX
    assert told[-1] == "and 6 more"
    assert max(map(len, told)) == TEXT_CHARACTERS_MAX
    assert not any("\n" in text for text in told)
    assert reasons_of(list(told)) == told


@pytest.mark.parametrize(
    "value", [None, "text", {}, [1], [["x"]], ["x" * (TEXT_CHARACTERS_MAX + 1)], ["x"] * 17]
)
def test_what_a_peer_says_is_bounded(value: object) -> None:
    with pytest.raises(ValueError, match="reason"):
        reasons_of(value)


def test_what_a_peer_says_moves_no_cursor() -> None:
    assert reasons_of(["a\x1b[2Jb"]) == ("a?[2Jb",)


def test_what_is_over_is_told_for_an_hour_and_counted_until_then() -> None:
    over = Over()
    assert not over.told(0.0)

    over.note(10.0)
    over.note(HEALED_S)
    assert (over.count, over.told(2 * HEALED_S - 1), over.told(2 * HEALED_S)) == (2, True, False)

    over.note(3 * HEALED_S)
    assert over.count == 1
