"""What a freshly installed wheel must do with nothing else installed: log, tools, broker."""

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import kcore
from kcore.protocol.messages.api_versions import ApiVersionsRequest

assert shutil.which("cc") is None, "this test is to run without a compiler"
with tempfile.TemporaryDirectory() as root:
    directory = Path(root) / "orders-0"
    directory.mkdir()
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        batch = kcore.RecordBatchBuilder(compression=codec)
        for n in range(100):
            batch.append(b"value %d" % n, key=b"key", timestamp=1_700_000_000_000 + n)
        with kcore.open_log(directory, mode="a") as log:
            log.append_as_leader(batch.build())
    with kcore.open_log(directory) as log:
        records = list(log.records())
    assert [r.offset for r in records] == list(range(500)), len(records)
    assert records[499].value == b"value 99"
    subprocess.run([shutil.which("kcore"), "verify", str(directory)], check=True)

with kcore.Broker() as broker:
    host, port = broker.bootstrap_servers.split(":")
    body = ApiVersionsRequest().encode(0)
    frame = (18).to_bytes(2, "big") + bytes(2) + (7).to_bytes(4, "big") + b"\xff\xff" + body
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        sock.sendall(len(frame).to_bytes(4, "big") + frame)
        answer = sock.recv(10)
    assert answer[4:8] == (7).to_bytes(4, "big") and answer[8:10] == bytes(2), answer
print(f"kcore {kcore.__version__} works from its wheel, Python {sys.version.split()[0]}")
