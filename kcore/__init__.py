"""kcore: the Apache Kafka log, native in Python.

Public are the names of this package, and the modules kcore.errors, kcore.inspect (log files as they are), kcore.spark
(DataFrames) and kcore.testing (clocks that a test moves, and the pytest fixtures).  Other modules are for kcore itself.

The public names load on first use, so that `import kcore` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kcore import errors as errors
    from kcore.frames.log_plot import plot_log as plot_log
    from kcore.frames.open_topic import open_topic as open_topic
    from kcore.log.open_log import open_log as open_log
    from kcore.log.unified_log import UnifiedLog as UnifiedLog
    from kcore.record.crc32c import crc32c as crc32c
    from kcore.record.memory_records import MemoryRecords as MemoryRecords
    from kcore.record.record_batch import Record as Record
    from kcore.record.record_batch import RecordBatch as RecordBatch
    from kcore.record.record_batch_builder import RecordBatchBuilder as RecordBatchBuilder
    from kcore.security.acl_authorizer import AclAuthorizer as AclAuthorizer
    from kcore.security.authorizer import Authorizer as Authorizer
    from kcore.security.stored_acl_authorizer import StoredAclAuthorizer as StoredAclAuthorizer
    from kcore.server.broker import Broker as Broker
    from kcore.server.cluster import Cluster as Cluster
    from kcore.server.in_process_client import ConsumerRecord as ConsumerRecord
    from kcore.server.in_process_client import RecordMetadata as RecordMetadata
    from kcore.server.requests.client_telemetry import ClientTelemetryPayload as ClientTelemetryPayload

_HOME = {
    "AclAuthorizer": "kcore.security.acl_authorizer",
    "Authorizer": "kcore.security.authorizer",
    "Broker": "kcore.server.broker",
    "ClientTelemetryPayload": "kcore.server.requests.client_telemetry",
    "Cluster": "kcore.server.cluster",
    "ConsumerRecord": "kcore.server.in_process_client",
    "MemoryRecords": "kcore.record.memory_records",
    "Record": "kcore.record.record_batch",
    "RecordBatch": "kcore.record.record_batch",
    "RecordBatchBuilder": "kcore.record.record_batch_builder",
    "RecordMetadata": "kcore.server.in_process_client",
    "StoredAclAuthorizer": "kcore.security.stored_acl_authorizer",
    "UnifiedLog": "kcore.log.unified_log",
    "crc32c": "kcore.record.crc32c",
    "open_log": "kcore.log.open_log",
    "open_topic": "kcore.frames.open_topic",
    "plot_log": "kcore.frames.log_plot",
}

__all__ = ["__version__", "errors", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("kcore.errors")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kcore' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
