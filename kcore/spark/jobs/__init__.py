"""Jobs over whole data directories, spread over Spark's tasks: verify, reindex, diff, recompress and
compaction_statistics."""

from kcore.common.optional_packages import missing_package

try:
    import pyarrow  # noqa: F401
except ImportError as error:
    raise missing_package("kcore.spark", "spark", error) from None

from kcore.spark.jobs.compaction import compaction_statistics
from kcore.spark.jobs.directory_jobs import diff, reindex, verify
from kcore.spark.jobs.recompression import recompress

__all__ = ["compaction_statistics", "diff", "recompress", "reindex", "verify"]
