"""Scenario files: the packaged ones are sound, every mistake is one clear error that names its place."""

import pytest

from distributedlog.runtime.interfaces.errors import InvalidRequest
from distributedlog.testing.chaos.model.adapter import Capability
from distributedlog.testing.chaos.model.scenario import KINDS
from distributedlog.testing.chaos.model.scenario_file import load, packaged, parse
from distributedlog.testing.chaos.run.runner import seconds_needed

SOUND = """
seconds = 10
[[client]]
kind = "writer"
[[loop]]
name = "one"
pause_s = 2
[[loop.fault]]
kind = "kill"
target = "bookie"
hold_s = [0.5, 1]
"""


def test_a_small_file_is_read() -> None:
    scenario = parse(SOUND, "x.toml")

    assert scenario.loops[0].pause_s == (2.0, 2.0)
    assert scenario.loops[0].faults[0].hold_s == (0.5, 1.0)
    assert scenario.logs == ["story"]
    assert scenario.capabilities == {Capability.KILL}


@pytest.mark.parametrize("name", packaged())
def test_a_packaged_scenario_is_sound(name: str) -> None:
    scenario = load(name)

    assert scenario.name == name
    assert scenario.about
    assert scenario.bounds.faults_min >= 1, "a run without faults says nothing"
    assert scenario.bounds.acked_min >= 1000


def test_the_packaged_scenarios_play_every_kind_of_fault() -> None:
    played = {fault.kind for name in packaged() for fault in load(name).faults}

    assert played == set(KINDS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("seconds = 10", "second = 10"), "there is no second; known are name, seconds"),
        (("seconds = 10", "seconds = 0"), "seconds is 0"),
        (("seconds = 10", 'seconds = "ten"'), "seconds is 'ten', must be a number"),
        (("seconds = 10", "seconds = "), "x.toml is not TOML"),
        (('kind = "writer"', 'kind = "wrter"'), "kind is 'wrter'; known are writer, duel"),
        (('kind = "writer"', 'kind = "tail"'), "no client writes"),
        (
            ("[[client]]", '[[client]]\nkind = "stranger"\n[[client]]'),
            "a stranger requires authorization",
        ),
        (
            ("[[client]]", '[walk]\n[[client]]\nkind = "registers"\n[[client]]'),
            "with [walk] no client can be of kind 'registers'",
        ),
        (("[[client]]", "[walk]\nhold = 3\n[[client]]"), "[walk]: there is no hold"),
        (
            ("[[client]]", "[walk]\n[cluster]\nread_proxies = 1\n[[client]]"),
            "[walk] is for clients without proxies and gateways",
        ),
        (('kind = "writer"', 'kind = "writer"\nrate = 0'), "rate more than 0"),
        (('kind = "writer"', 'kind = "writer"\nlog = 7'), "log is 7, must be a text"),
        (('kind = "kill"', 'kind = "kil"'), "[[loop.fault]] 1: kind is 'kil'; known are kill"),
        (('kind = "kill"', 'kind = "kill"\nlimit = 3'), "kill has no limit; known are target"),
        (('kind = "kill"\ntarget = "bookie"', 'kind = "damage"'), "destroys data"),
        (('kind = "kill"\ntarget = "bookie"', 'kind = "kill-client"'), "target is 'node'"),
        (
            ('kind = "kill"\ntarget = "bookie"', 'kind = "kill-client"\ntarget = "duel"'),
            "no [[client]] that does not wait is of that kind",
        ),
        (("hold_s = [0.5, 1]", "hold_s = [2, 1]"), "hold_s is [2, 1], must be a number, or [low"),
        (('target = "bookie"', 'target = "bookie9"'), "the nodes metadata1, "),
        (("[[client]]", "[client]"), "two brackets"),
        (("[[client]]", "[cluster]\nmetadata_nodes = 2\n[[client]]"), "must be 1, 3, 5"),
        (("[[client]]", '[[moment]]\nkind = "kill"\n[[client]]'), "at_s is missing"),
        (('target = "bookie"', 'target = "write-proxy"'), "kill of 'write-proxy'; known are"),
        (('target = "bookie"', 'target = "gateway1"'), "kill of 'gateway1'; known are"),
        (("[[client]]", "[cluster]\nwrite_proxies = 21\n[[client]]"), "0 to 20 of each kind"),
        (('kind = "writer"', 'kind = "poster"'), "a poster, but [cluster] has no gateways"),
        (
            ('kind = "writer"', 'kind = "writer"\nthrough = "proxies"'),
            "a writer through proxies, but [cluster] has no write_proxies",
        ),
        (('kind = "writer"', 'kind = "duel"\nthrough = "proxies"'), "possible are writer"),
        (('kind = "writer"', 'kind = "writer"\nthrough = "x"'), "through is 'x'"),
        (
            ("[[client]]", "[cluster]\ngateways = 1\ncertificate_days = 1\n[[client]]"),
            "require tokens of users",
        ),
        (
            ('kind = "kill"\ntarget = "bookie"', 'kind = "run-client"\ntarget = "writer"'),
            "no [[client]] with waits = true is of that kind",
        ),
        (
            ('kind = "kill"', 'kind = "wrong-memory"'),
            "wrong-memory of 'bookie' could affect a bookie; possible roles are metadata",
        ),
        (('kind = "kill"', 'kind = "rot-everywhere"'), 'its target must be "bookies"'),
        (('kind = "kill"', 'kind = "settings"\nsettings = 3'), "settings is 3, must be a table"),
        (("[[client]]", '[[moment]]\nat_s = 10\nkind = "kill"\n[[client]]'), "ends at 10 s"),
    ],
)
def test_a_mistake_is_one_error_that_names_its_place(change: tuple[str, str], words: str) -> None:
    text = SOUND.replace(*change)
    assert text != SOUND

    with pytest.raises(InvalidRequest) as caught:
        parse(text, "x.toml")

    assert str(caught.value).startswith("x.toml")
    assert words in str(caught.value)


def test_what_keeps_nothing_has_no_disk_to_break() -> None:
    text = SOUND.replace("[[client]]", "[cluster]\nread_proxies = 1\n[[client]]", 1)
    text = text.replace('kind = "kill"\ntarget = "bookie"', 'kind = "power-cut"\ntarget = "all"')

    with pytest.raises(InvalidRequest, match="power-cut of 'all' could affect a read-proxy"):
        parse(text, "x.toml")


def test_proxies_gateways_and_certificates_are_asked_of_the_place() -> None:
    beside = SOUND.replace(
        "[[client]]", "[cluster]\nwrite_proxies = 1\ngateways = 2\n[[client]]", 1
    )
    shown = SOUND.replace("[[client]]", "[cluster]\ncertificate_days = 1\n[[client]]", 1)

    scenario = parse(beside, "x.toml")

    assert scenario.capabilities == {Capability.KILL, Capability.PROXIES, Capability.GATEWAYS}
    assert [*scenario.cluster.names][-3:] == ["write-proxy1", "gateway1", "gateway2"]
    assert parse(shown, "x.toml").capabilities == {Capability.KILL, Capability.CERTIFICATES}


def test_a_scenario_that_is_not_there_names_the_packaged_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"packaged scenarios are .*kills"):
        load("no-such-one")


@pytest.mark.parametrize("name", packaged())
def test_a_packaged_scenario_lasts_long_enough_for_its_bounds(name: str) -> None:
    scenario = load(name)

    assert 0 < seconds_needed(scenario) < scenario.seconds


def test_what_a_run_needs_is_computed_from_its_bounds() -> None:
    def needed(bounds: str, text: str = SOUND) -> float:
        return seconds_needed(parse(f"{text}[bounds]\n{bounds}\n", "x.toml"))

    assert needed("acked_min = 0\nfaults_min = 0") == 0
    assert needed("acked_min = 5000\nfaults_min = 0") == 5  # a writer has 1,000 records/s
    assert needed("acked_min = 0\nfaults_min = 4") == 4 * (2 + 0.75)
    moments = (
        '[[client]]\nkind = "writer"\n[[moment]]\nat_s = 7\nkind = "kill"\ntarget = "bookie"\n'
    )
    assert needed("acked_min = 0\nfaults_min = 1", "seconds = 10\n" + moments) == 7
