"""What every error carries, and how it travels."""

import traceback

import pytest

from distributedlog.runtime.interfaces import errors
from distributedlog.runtime.interfaces.errors import BY_CODE, DistributedLogError, LogTruncated
from distributedlog.runtime.protocol.frames import error_body, error_from

CLASSES = sorted(BY_CODE.values(), key=lambda cls: cls.code)


def test_no_two_errors_share_a_code() -> None:
    ours = [value for value in vars(errors).values() if isinstance(value, type)]
    kinds = [cls for cls in ours if issubclass(cls, DistributedLogError)]

    assert set(kinds) == set(CLASSES)
    assert all(cls.__doc__ for cls in kinds)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_comes_over_the_wire_as_what_it_was(cls: type[DistributedLogError]) -> None:
    found = error_from(cls.code, error_body(cls("what, where", "1.12.3")))

    assert (type(found), str(found), found.detail) == (cls, "what, where", "1.12.3")


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_that_is_raised_again_is_the_same_but_for_its_traceback(
    cls: type[DistributedLogError],
) -> None:
    cause = OSError("the disk")
    try:
        raise cls("what, where", "1.12.3") from cause
    except DistributedLogError as error:
        first = error

    with pytest.raises(cls) as caught:
        raise first.again()

    again = caught.value
    assert (type(again), str(again), again.detail) == (cls, "what, where", "1.12.3")
    assert again.__cause__ is cause
    assert len(traceback.extract_tb(first.__traceback__)) == 1, "the first raise alone"


def test_an_error_without_a_cause_is_raised_again_without_one() -> None:
    again = LogTruncated("cut", "1.0.0").again()

    assert again.first == "1.0.0"
    assert str(again.again("cut by hand")) == "cut by hand"
    assert again.again("cut by hand").first == "1.0.0"
    assert again.__cause__ is None
    assert not again.__suppress_context__
