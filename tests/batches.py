"""Record batches as producers send them."""

from kcore.record.record_batch_builder import RecordBatchBuilder

#: Of records whose time no test is about.
TIMESTAMP = 1_700_000_000_000


def batch(*values, key=None, timestamp=TIMESTAMP, step_ms=0, **options):
    """One batch with these values, which a log may change in place.

    Record i has timestamp + i * step_ms.  options: those of RecordBatchBuilder.
    """
    builder = RecordBatchBuilder(**options)
    for number, value in enumerate(values or (b"value",)):
        builder.append(value, key, timestamp=timestamp + number * step_ms)
    return builder.build()
