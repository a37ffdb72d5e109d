from kcore.replica.delayed.delayed_partitions import DelayedPartitions


class Waiting(DelayedPartitions):
    def __init__(self):
        super().__init__(1000, ["a", "b"])
        self.looked_at, self.answers = [], 0

    def _must_wait(self, topic_partition):
        self.looked_at.append(topic_partition)
        return topic_partition == "b"

    def on_complete(self):
        self.answers += 1


def test_PURG_01_a_try_that_comes_after_the_answer_changes_nothing():
    """After the answer its errors are read without a lock: an error that is set now would reach no client."""
    operation = Waiting()
    assert not operation.try_complete() and operation.looked_at == ["a", "b"]
    assert operation.force_complete()
    assert not operation.try_complete()
    assert operation.looked_at == ["a", "b"] and operation.answers == 1
