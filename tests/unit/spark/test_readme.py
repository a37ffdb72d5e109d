"""What the README tells to type works as it stands."""

import kcore
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.interop.test_readme import python_blocks


def test_the_readme_reads_and_writes_with_spark(spark, tmp_path, capsys):
    (tmp_path / "kafka").mkdir()
    builder = RecordBatchBuilder()
    for number in range(1010):
        builder.append(b"%d" % number)
    with kcore.open_log(str(tmp_path / "kafka" / "orders-0"), "a") as log:
        log.append_as_leader(builder.build())
    (code,) = (block for block in python_blocks() if "spark" in block)
    for named, there in ("/var/lib/kafka", "kafka"), ("copy", "copy"):
        assert f'"{named}"' in code
        code = code.replace(f'"{named}"', repr(str(tmp_path / there)))
    exec(code, {})
    assert "|        0|   10|" in capsys.readouterr().out
    with kcore.open_log(str(tmp_path / "copy" / "orders-0")) as log:
        assert [record.value for record in log.records()] == [b"%d" % number for number in range(1000, 1010)]
