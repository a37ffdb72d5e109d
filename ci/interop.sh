#!/usr/bin/env bash
# Apache Kafka's own Java client against a kcore broker, and Kafka's own tool on the directories that kcore wrote.
# On a machine without Maven or Java it says so and exits 0.
set -euo pipefail
cd "$(dirname "$0")/.."
jars=$(bash ci/kafka_jars.sh) || {
    [ $? -eq 3 ] && { echo "interop: skipped, see above"; exit 0; }
    echo "interop: the jars could not be fetched" >&2
    exit 1
}
classes=build/interop-classes
mkdir -p "$classes"
javac -nowarn -proc:none -cp "$jars/*" -d "$classes" ci/interop/InteropClient.java
PYTHONPATH=. exec "${PYTHON:-python3}" ci/interop/run.py "$jars" "$classes" "$@"
