"""A run's picture is an SVG that stands alone, with what the run was and how it went."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

from distributedlog import LogRecord
from distributedlog.cli.main import command
from distributedlog.testing.bench.measure.histogram import Histogram, per_second
from distributedlog.testing.bench.measure.svg_report import picture
from tests.log.conftest import World
from tests.log.conftest import world as world  # a fixture

SVG = "{http://www.w3.org/2000/svg}"


def found(**more: object) -> dict[str, object]:
    return {
        "records": 3000,
        "seconds": 2.5,
        "records_per_s": 1200.0,
        "latency_ms": None,
        "others_cpu_pct": 1.0,
        "per_second": [1000.0, 1600.0, 800.0],
        **more,
    }


def test_a_run_is_drawn_with_its_seconds_and_its_latencies() -> None:
    histogram = Histogram()
    for n in range(1000):
        histogram.add(0.001 * (1 + n % 10))

    text = picture(
        found(latency_ms=histogram.summary_ms(), percentiles_ms=histogram.curve_ms()), "a <run>"
    )

    root = ElementTree.fromstring(text)
    said = [one.text for one in root.iter(f"{SVG}text")]
    assert "a <run>" in said
    assert "records per second" in said
    assert "latency percentiles" in said
    [rates] = [one.get("points", "") for one in root.iter(f"{SVG}polygon")]
    assert len(rates.split()) == 2 + 2 * 3
    [curve] = [one.get("points", "") for one in root.iter(f"{SVG}polyline")]
    places = [tuple(map(float, point.split(","))) for point in curve.split()]
    assert places == sorted(places, key=lambda one: (one[0], -one[1]))  # up and to the right
    assert all(0 <= x <= 1080 for x, _ in places)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # asks nobody


def test_a_run_without_latencies_or_without_a_whole_second_is_drawn_too() -> None:
    for one in (found(percentiles_ms=None), found(percentiles_ms=[], per_second=[], seconds=0.01)):
        root = ElementTree.fromstring(picture(one, "read"))
        assert not list(root.iter(f"{SVG}polyline"))


async def test_each_second_has_what_was_acknowledged_in_it(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as namespace:
        await namespace.create_log("l")
        async with namespace.open_log("l").open_writer() as writer:
            start = trio.current_time()
            async with per_second(namespace, "dlog_client_records_written_total") as rates:
                for second in range(3):
                    await trio.sleep_until(start + second + 0.1)
                    await writer.write_bulk([LogRecord(second, b"x")] * 10 * second)
                await trio.sleep_until(start + 3.5)

    assert rates == [0, 10, 20, 0]


def test_a_picture_that_cannot_be_written_ends_the_bench_before_it_begins(tmp_path: Path) -> None:
    place = str(tmp_path / "absent" / "x.svg")

    done = CliRunner().invoke(
        command, ["bench", "write", "--uri", "distributedlog://127.0.0.1:1/n", "--picture", place]
    )

    assert done.exit_code == 2
    assert "absent" in done.output


@pytest.mark.parametrize("percent", [50.0, 99.0, 100.0])
def test_the_curve_goes_through_the_percentiles(percent: float) -> None:
    histogram = Histogram()
    for n in range(1, 2001):
        histogram.add(n / 1000)

    curve = {at: ms for at, ms in histogram.curve_ms()}

    assert curve[percent] == round(histogram.percentile_s(percent) * 1e3, 4)
    assert Histogram().curve_ms() == []
