"""Every replica of every entry is read before whoever asks gives up other copies (H158)."""

import pytest
import xxhash
from trio.testing import MockClock

from distributedlog.bookie.format import entry as entries
from distributedlog.runtime.interfaces.errors import DistributedLogError

from ..model_bookie import ModelCluster, model_cluster, written

QUORUMS = [(3, 3, 2), (5, 3, 3), (4, 2, 2)]


async def closed(cluster: ModelCluster, quorums: tuple[int, int, int]):  # type: ignore[no-untyped-def]
    client, writer = await written(
        cluster,
        23,
        payload=lambda entry: b"%d" % entry,
        ensemble_size=quorums[0],
        write_quorum=quorums[1],
        ack_quorum=quorums[2],
    )
    await writer.close()
    return client, writer.ledger_id


MEANT = [xxhash.xxh3_64_intdigest(b"%d" % n) for n in range(23)]


@pytest.mark.parametrize("quorums", QUORUMS)
async def test_what_all_replicas_hold_is_what_was_meant(
    autojump_clock: MockClock, quorums: tuple[int, int, int]
) -> None:
    async with model_cluster(quorums[0]) as cluster:
        client, ledger_id = await closed(cluster, quorums)

        assert await client.different_copy(ledger_id, MEANT) == ""
        assert "it ends at entry 22" in await client.different_copy(ledger_id, MEANT[:-1])
        assert "other bytes" in await client.different_copy(ledger_id, [*MEANT[:-1], 0])


@pytest.mark.parametrize("quorums", QUORUMS)
@pytest.mark.parametrize("how", ["lost", "damaged", "other"])
async def test_one_bad_copy_on_any_bookie_is_named(
    autojump_clock: MockClock, quorums: tuple[int, int, int], how: str
) -> None:
    """Though readers do not notice it: another replica answers them."""
    async with model_cluster(quorums[0]) as cluster:
        client, ledger_id = await closed(cluster, quorums)
        for number in range(quorums[0]):
            bookie = f"b{number}"
            held = cluster[bookie].model.ledgers[ledger_id]
            for entry in sorted(held.entries)[::4]:
                before = held.entries[entry]
                if how == "lost":
                    del held.entries[entry]
                elif how == "damaged":
                    held.damaged = {entry}
                else:
                    sound = next(entries.records(before))
                    held.entries[entry] = bytes(
                        entries.encode(
                            ledger_id, entry, sound.length_so_far, sound.lac, [b"rot"], 3
                        )
                    )
                said = await client.different_copy(ledger_id, MEANT)
                assert said.startswith(f"{bookie}: entry {entry}"), said
                held.entries[entry], held.damaged = before, set()
        assert await client.different_copy(ledger_id, MEANT) == ""


async def test_a_bookie_that_does_not_answer_is_no_sound_copy(autojump_clock: MockClock) -> None:
    """Nothing is known of it: an error, and not "all is well"."""
    async with model_cluster(3) as cluster:
        client, ledger_id = await closed(cluster, (3, 3, 2))
        cluster["b1"].stop()

        with pytest.raises(DistributedLogError) as caught:
            await client.different_copy(ledger_id, MEANT)

        assert caught.value.retryable
