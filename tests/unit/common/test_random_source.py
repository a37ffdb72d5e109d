from random import Random

from kcore.common.random_source import SYSTEM_RANDOM, random_uuid


def test_the_same_seed_gives_the_same_ids():
    ids = [random_uuid(Random(7)), random_uuid(Random(7)), random_uuid(Random(8))]
    assert ids[0] == ids[1] != ids[2]


def test_an_id_is_a_random_uuid_of_version_4():
    ids = {random_uuid(SYSTEM_RANDOM) for _ in range(100)}
    assert len(ids) == 100 and {(value.version, value.variant) for value in ids} == {
        (4, "specified in RFC 4122"),
    }
