// The Java client against a cluster.  Takes commands from standard input, one a line, and answers each with a line
// "ok ..." when it is done; ends with an exception when something is wrong.
//   produce TOPIC   begin to write keyed records, idempotently, acks=all, until "stop"
//   acknowledged    how many records were acknowledged so far
//   stop            end "produce"; every record must have been acknowledged
//   group TOPIC     as a group of two, read everything: each acknowledged record once, in order, at its offset
//   read TOPIC      read partition 0 from where the last "read" ended to its end, as a consumer of the rack

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.IntegerSerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class ClusterClient {
    private static final Duration PATIENCE = Duration.ofSeconds(120);
    private static final int KEYS = 100;

    private record Position(int partition, long offset) {}

    private final String bootstrap;
    private final String rack;
    /** Of each acknowledged record its number, which is its value. */
    private final Map<Position, Integer> acknowledged = new ConcurrentHashMap<>();
    private final AtomicReference<Exception> refused = new AtomicReference<>();
    private volatile boolean isStopped;
    private Thread producing;
    private int sent;
    private KafkaConsumer<String, byte[]> reader;

    private ClusterClient(String bootstrap, String rack) {
        this.bootstrap = bootstrap;
        this.rack = rack;
    }

    public static void main(String[] args) throws Exception {
        ClusterClient client = new ClusterClient(args[0], args[1]);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            System.out.println("ok " + switch (words[0]) {
                case "produce" -> client.startProducing(words[1]);
                case "acknowledged" -> client.acknowledged.size();
                case "stop" -> client.stopProducing();
                case "group" -> client.readAsGroup(words[1]);
                case "read" -> client.readAsRack(new TopicPartition(words[1], 0));
                default -> throw new IllegalArgumentException(line);
            });
        }
        System.exit(0);
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) throw new AssertionError(otherwise);
    }

    private Properties config(Object... pairs) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) config.put(pairs[i], pairs[i + 1]);
        return config;
    }

    private int startProducing(String topic) {
        producing = new Thread(() -> produce(topic), "producer");
        producing.start();
        return 0;
    }

    private void produce(String topic) {
        Properties config = config("acks", "all", "enable.idempotence", "true", "linger.ms", "2",
                "delivery.timeout.ms", (int) PATIENCE.toMillis(), "max.block.ms", PATIENCE.toMillis());
        try (KafkaProducer<String, Integer> producer =
                new KafkaProducer<>(config, new StringSerializer(), new IntegerSerializer())) {
            while (!isStopped) {
                for (int end = sent + 20; sent < end; sent++) {
                    int number = sent;
                    producer.send(new ProducerRecord<>(topic, "key-" + number % KEYS, number), (metadata, error) -> {
                        if (error != null) refused.compareAndSet(null, error);
                        else acknowledged.put(new Position(metadata.partition(), metadata.offset()), number);
                    });
                }
                Thread.sleep(10);
            }
        } catch (Exception error) {
            refused.compareAndSet(null, error);
        }
    }

    private int stopProducing() throws Exception {
        isStopped = true;
        producing.join();
        if (refused.get() != null) throw refused.get();
        check(acknowledged.size() == sent, acknowledged.size() + " offsets were answered for " + sent + " records");
        return sent;
    }

    private int readAsGroup(String topic) {
        Map<Integer, Integer> lastNumbers = new HashMap<>();
        Map<String, Integer> partitionOfKey = new HashMap<>();
        int count = 0;
        try (KafkaConsumer<String, Integer> one = groupMember(topic);
                KafkaConsumer<String, Integer> two = groupMember(topic)) {
            List<KafkaConsumer<String, Integer>> members = List.of(one, two);
            long end = System.nanoTime() + PATIENCE.toNanos();
            // Nothing is read before both have their share: a partition that moves would come twice.
            while (one.assignment().isEmpty() || two.assignment().isEmpty()) {
                check(System.nanoTime() < end, "the two members do not share the partitions");
                for (KafkaConsumer<String, Integer> member : members) {
                    member.poll(Duration.ofMillis(50));
                    member.seekToBeginning(member.assignment());
                }
            }
            while (!isAtEnd(one) || !isAtEnd(two)) {
                check(System.nanoTime() < end, count + " of " + acknowledged.size() + " records came");
                for (KafkaConsumer<String, Integer> member : members) {
                    for (ConsumerRecord<String, Integer> record : member.poll(Duration.ofMillis(50))) {
                        int number = record.value();
                        Position position = new Position(record.partition(), record.offset());
                        check(Integer.valueOf(number).equals(acknowledged.get(position)),
                                position + " has " + number + ", acknowledged was " + acknowledged.get(position));
                        Integer before = lastNumbers.put(record.partition(), number);
                        check(before == null || before < number, position + ": " + number + " comes after " + before);
                        check(record.key().equals("key-" + number % KEYS), position + " has the key " + record.key());
                        Integer other = partitionOfKey.put(record.key(), record.partition());
                        check(other == null || other == record.partition(), record.key() + " is in two partitions");
                        count++;
                    }
                }
            }
            members.forEach(KafkaConsumer::commitSync);
        }
        check(count == acknowledged.size(), count + " records came, acknowledged were " + acknowledged.size());
        return count;
    }

    private KafkaConsumer<String, Integer> groupMember(String topic) {
        KafkaConsumer<String, Integer> member = new KafkaConsumer<>(
                config("group.id", "java-cluster", "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                        "group.protocol", "classic", "check.crcs", "true"),
                new StringDeserializer(), new IntegerDeserializer());
        member.subscribe(List.of(topic));
        return member;
    }

    private static boolean isAtEnd(KafkaConsumer<?, ?> consumer) {
        Collection<TopicPartition> partitions = new ArrayList<>(consumer.assignment());
        Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
        return partitions.stream().allMatch(partition -> consumer.position(partition) == ends.get(partition));
    }

    private int readAsRack(TopicPartition partition) {
        if (reader == null) {
            reader = new KafkaConsumer<>(config("client.rack", rack, "auto.offset.reset", "none", "check.crcs", "true"),
                    new StringDeserializer(), new ByteArrayDeserializer());
            reader.assign(List.of(partition));
            reader.seekToBeginning(List.of(partition));
        }
        long next = reader.position(partition);
        int count = 0;
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!isAtEnd(reader)) {
            check(System.nanoTime() < end, "the consumer of rack " + rack + " has read " + count + " records only");
            for (ConsumerRecord<String, byte[]> record : reader.poll(Duration.ofMillis(50))) {
                check(record.offset() == next, "offset " + record.offset() + " came, expected was " + next);
                next++;
                count++;
            }
        }
        return count;
    }
}
