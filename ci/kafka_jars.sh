#!/usr/bin/env bash
# kafka_jars.sh [kafka24|kafka39|spark]: print the folder with a real Kafka's jars (build/kafka-jars), with those of
# clients of Kafka 2.4 (build/kafka24-jars), of Kafka 3.9 and its ZooKeeper (build/kafka39-jars), or with those of Spark's
# Kafka connector (build/spark-jars), fetching them once with Maven.
# Exits 3, saying why, on a machine without Maven or without a JDK of 17 or later.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in mvn java javac; do
    command -v "$tool" >/dev/null || { echo "there is no $tool here" >&2; exit 3; }
done
version=$(java -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p')
[ "${version:-0}" -ge 17 ] || { echo "java is version ${version:-unknown}, Kafka 4 takes 17" >&2; exit 3; }
case "${1:-kafka}" in
    kafka) wanted=ci/interop/pom.xml ;;
    kafka24) wanted=ci/interop/kafka24.xml ;;
    kafka39) wanted=ci/interop/kafka39.xml ;;
    spark) wanted=ci/interop/spark_connector.xml ;;
    *) echo "usage: kafka_jars.sh [kafka24|kafka39|spark]" >&2; exit 2 ;;
esac
jars=$PWD/build/${1:-kafka}-jars
if [ ! -f "$jars/.complete" ] || [ "$wanted" -nt "$jars/.complete" ]; then
    rm -rf "$jars"
    mvn -q -B -f "$wanted" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars" >&2
    touch "$jars/.complete"
fi
echo "$jars"
