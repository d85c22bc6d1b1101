"""A policy of the system's scheduler that is refused costs time and nothing else."""

import os

import pytest

from distributedlog.runtime import cpu_policy


def test_where_the_system_refuses_the_process_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refused)

    cpu_policy.take(cpu_policy.BATCH)

    assert "cpu_policy = batch: Operation not permitted" in caplog.text


def test_as_started_asks_the_system_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that a service manager or chrt chose stays."""
    monkeypatch.delattr(os, "sched_setscheduler")

    cpu_policy.take(cpu_policy.AS_STARTED)
