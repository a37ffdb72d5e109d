#!/usr/bin/env bash
# kafka_jars.sh: print the folder with a real Kafka's jars (build/kafka-jars), fetching them once with Maven.
# Exits 3, saying why, on a machine without Maven or without a JDK of 17 or later.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in mvn java javac; do
    command -v "$tool" >/dev/null || { echo "there is no $tool here" >&2; exit 3; }
done
version=$(java -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p')
[ "${version:-0}" -ge 17 ] || { echo "java is version ${version:-unknown}, Kafka 4 takes 17" >&2; exit 3; }
jars=$PWD/build/kafka-jars
if [ ! -f "$jars/.complete" ] || [ ci/interop/pom.xml -nt "$jars/.complete" ]; then
    rm -rf "$jars"
    mvn -q -B -f ci/interop/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars" >&2
    touch "$jars/.complete"
fi
echo "$jars"
