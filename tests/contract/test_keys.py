"""Keys: one hash slot for all of a pool, and none shared between pools."""

import binascii

from shoal.contract.keys import Keys


def all_keys(keys: Keys) -> list[str]:
    made = [keys.lane("bulk"), keys.replies("a"), keys.result("a"), keys.record("a"), keys.worker("a"), keys.cache("1")]
    return [*made, keys.changes("a"), keys.changed, keys.dead, keys.alive]


def slot(key: str) -> int:
    """The slot in Redis Cluster: CRC16 (XModem) of what stands in the first braces."""
    return binascii.crc_hqx(key.partition("{")[2].partition("}")[0].encode(), 0) % 16_384


def test_the_keys_of_a_pool_share_a_slot_and_none_with_another_pool() -> None:
    names = [name for keys in (Keys(), Keys(pool="b"), Keys(prefix="p")) for name in all_keys(keys)]
    assert len(set(names)) == len(names)
    assert len({slot(name) for name in all_keys(Keys())}) == 1
    assert all(name.startswith("shoal:{default}:") for name in all_keys(Keys()))
