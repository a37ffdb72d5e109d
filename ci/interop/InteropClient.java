// What the Java client of Apache Kafka must be able to do with a broker: produce in every codec, idempotently and not,
// find offsets by time, read everything back, and consume as a group.  Ends with status 0, or with an exception.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class InteropClient {
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    private static final int RECORDS = 3000;
    private static final int PARTITIONS = 2;
    private static final long FIRST_TIMESTAMP = 1_700_000_000_000L;
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private final String bootstrap;

    private InteropClient(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        InteropClient client = new InteropClient(args[0]);
        client.createTopics();
        for (String codec : CODECS) {
            for (boolean idempotent : new boolean[] {false, true}) {
                client.produce(topic(codec, idempotent), codec, idempotent);
                client.readBack(topic(codec, idempotent));
            }
        }
        client.findOffsets();
        client.growTopic();
        client.consumeAsGroup();
        System.out.println("java client: ok");
    }

    private static String topic(String codec, boolean idempotent) {
        return "java-" + codec + (idempotent ? "-idempotent" : "");
    }

    private Properties config(Object... pairs) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) config.put(pairs[i], pairs[i + 1]);
        return config;
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) throw new AssertionError(otherwise);
    }

    private void createTopics() throws Exception {
        try (Admin admin = Admin.create(config())) {
            List<NewTopic> topics = new ArrayList<>();
            for (String codec : CODECS) {
                for (boolean idempotent : new boolean[] {false, true}) {
                    topics.add(new NewTopic(topic(codec, idempotent), PARTITIONS, (short) 1)
                            .configs(Map.of("segment.bytes", "1048576", "index.interval.bytes", "1024")));
                }
            }
            admin.createTopics(topics).all().get();
            Set<String> known = admin.listTopics().names().get();
            for (NewTopic topic : topics) check(known.contains(topic.name()), topic.name() + " is not listed");
            check(!admin.describeCluster().nodes().get().isEmpty(), "the cluster has no node");
        }
    }

    /** Every tenth key and every thirteenth value is null; values grow so that batches differ and segments roll. */
    private static byte[] key(int n) {
        return n % 10 == 9 ? null : ("key-" + n).getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] value(int n) {
        if (n % 13 == 12) return null;
        byte[] value = new byte[n % 1500];
        for (int i = 0; i < value.length; i++) value[i] = (byte) (i % 7 == 0 ? n * 31 + i : 'a' + i % 17);
        return value;
    }

    private static List<Header> headers(int n) {
        if (n % 5 != 0) return List.of();
        return List.of(new RecordHeader("n", Integer.toString(n).getBytes(StandardCharsets.UTF_8)),
                new RecordHeader("n", null), new RecordHeader("", new byte[0]));
    }

    private void produce(String topic, String codec, boolean idempotent) throws Exception {
        Properties config = config("compression.type", codec, "enable.idempotence", Boolean.toString(idempotent),
                "acks", idempotent ? "all" : "1", "linger.ms", "2");
        List<Future<RecordMetadata>> answers = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int n = 0; n < RECORDS; n++) {
                answers.add(producer.send(new ProducerRecord<>(
                        topic, n % PARTITIONS, FIRST_TIMESTAMP + n, key(n), value(n), headers(n))));
            }
            producer.flush();
            for (int n = 0; n < RECORDS; n++) {
                RecordMetadata answer = answers.get(n).get();
                check(answer.offset() == n / PARTITIONS, topic + ": record " + n + " got offset " + answer.offset());
            }
        }
    }

    private void readBack(String topic) {
        Properties config = config("auto.offset.reset", "earliest", "check.crcs", "true", "fetch.max.bytes", "262144");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int p = 0; p < PARTITIONS; p++) partitions.add(new TopicPartition(topic, p));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            int seen = 0;
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (seen < RECORDS && System.nanoTime() < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    int n = (int) record.offset() * PARTITIONS + record.partition();
                    check(java.util.Arrays.equals(record.key(), key(n)), topic + ": key of record " + n);
                    check(java.util.Arrays.equals(record.value(), value(n)), topic + ": value of record " + n);
                    check(record.timestamp() == FIRST_TIMESTAMP + n, topic + ": timestamp of record " + n);
                    check(List.of(record.headers().toArray()).equals(headers(n)), topic + ": headers of record " + n);
                    seen++;
                }
            }
            check(seen == RECORDS, topic + ": " + seen + " of " + RECORDS + " records came back");
        }
    }

    private void findOffsets() throws Exception {
        TopicPartition partition = new TopicPartition(topic("zstd", true), 1);
        try (Admin admin = Admin.create(config())) {
            Map<OffsetSpec, Long> expected = new HashMap<>();
            expected.put(OffsetSpec.earliest(), 0L);
            expected.put(OffsetSpec.latest(), (long) RECORDS / PARTITIONS);
            expected.put(OffsetSpec.maxTimestamp(), (long) RECORDS / PARTITIONS - 1);
            expected.put(OffsetSpec.forTimestamp(FIRST_TIMESTAMP + 2000), 1000L);
            expected.put(OffsetSpec.forTimestamp(FIRST_TIMESTAMP + 1_000_000), -1L);
            for (Map.Entry<OffsetSpec, Long> entry : expected.entrySet()) {
                long offset = admin.listOffsets(Map.of(partition, entry.getKey())).partitionResult(partition).get().offset();
                check(offset == entry.getValue(), entry.getKey() + ": " + offset + ", expected " + entry.getValue());
            }
        }
    }

    private void growTopic() throws Exception {
        try (Admin admin = Admin.create(config())) {
            admin.createTopics(List.of(new NewTopic("java-grown", 1, (short) 1))).all().get();
            admin.createPartitions(Map.of("java-grown", NewPartitions.increaseTo(3))).all().get();
            int count = admin.describeTopics(List.of("java-grown")).allTopicNames().get().get("java-grown").partitions().size();
            check(count == 3, "java-grown has " + count + " partitions");
            admin.deleteTopics(List.of("java-grown")).all().get();
            check(!admin.listTopics().names().get().contains("java-grown"), "java-grown is still listed");
        }
    }

    /** Two members share a topic, commit, and leave; a third one then finds nothing to do. */
    private void consumeAsGroup() throws Exception {
        String topic = topic("lz4", true);
        Set<Integer> seen = new HashSet<>();
        try (KafkaConsumer<byte[], byte[]> one = groupMember(); KafkaConsumer<byte[], byte[]> two = groupMember()) {
            one.subscribe(List.of(topic));
            two.subscribe(List.of(topic));
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (!(atEndOfOnePartition(one) && atEndOfOnePartition(two)) && System.nanoTime() < end) {
                for (KafkaConsumer<byte[], byte[]> member : List.of(one, two)) {
                    for (ConsumerRecord<byte[], byte[]> record : member.poll(Duration.ofMillis(100))) {
                        seen.add((int) record.offset() * PARTITIONS + record.partition());
                    }
                }
            }
            check(seen.size() == RECORDS, "the group got " + seen.size() + " of " + RECORDS + " records");
            check(atEndOfOnePartition(one) && atEndOfOnePartition(two), "the members did not share the partitions");
            one.commitSync();
            two.commitSync();
        }
        try (KafkaConsumer<byte[], byte[]> late = groupMember(); Admin admin = Admin.create(config())) {
            late.subscribe(List.of(topic));
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (late.assignment().size() < PARTITIONS && System.nanoTime() < end) {
                check(late.poll(Duration.ofMillis(200)).isEmpty(), "a record came again after its offset was committed");
            }
            check(late.assignment().size() == PARTITIONS, "the late member got no assignment");
            check(late.poll(Duration.ofMillis(500)).isEmpty(), "a record came again after its offset was committed");
            Map<TopicPartition, OffsetAndMetadata> committed =
                    admin.listConsumerGroupOffsets("java-group").partitionsToOffsetAndMetadata().get();
            for (int p = 0; p < PARTITIONS; p++) {
                long offset = committed.get(new TopicPartition(topic, p)).offset();
                check(offset == RECORDS / PARTITIONS, "partition " + p + " is committed at " + offset);
            }
        }
    }

    private static boolean atEndOfOnePartition(KafkaConsumer<byte[], byte[]> member) {
        Set<TopicPartition> assigned = member.assignment();
        return assigned.size() == 1 && member.position(assigned.iterator().next()) == RECORDS / PARTITIONS;
    }

    private KafkaConsumer<byte[], byte[]> groupMember() {
        return new KafkaConsumer<>(config("group.id", "java-group", "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "group.protocol", "classic", "max.poll.records", "200"),
                new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }
}
