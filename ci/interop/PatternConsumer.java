// A consumer of the protocol of KIP-848 that leaves its pattern to the group coordinator (RE2):
// PatternConsumer SERVERS GROUP PATTERN.  Prints "assigned T-P,T-P" whenever its assignment has changed, "read VALUE" for
// each record, and "refused EXCEPTION MESSAGE" when the subscription fails, after which it ends.  It ends, and leaves the
// group, when its standard input does.

import java.time.Duration;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public final class PatternConsumer {
    public static void main(String[] args) {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[1]);
        config.put("group.protocol", "consumer");
        config.put("auto.offset.reset", "earliest");
        config.put("metadata.max.age.ms", "500");
        CompletableFuture<Void> isOver = CompletableFuture.runAsync(PatternConsumer::readToTheEnd);
        StringDeserializer texts = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config, texts, texts)) {
            consumer.subscribe(new SubscriptionPattern(args[2]));
            Set<TopicPartition> assigned = Set.of();
            while (!isOver.isDone()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                    System.out.println("read " + record.value());
                }
                if (!assigned.equals(consumer.assignment())) {
                    assigned = Set.copyOf(consumer.assignment());
                    System.out.println("assigned " + names(assigned));
                }
            }
        } catch (KafkaException refused) {
            System.out.println("refused " + refused.getClass().getSimpleName() + " " + refused.getMessage());
        }
        System.exit(0);
    }

    private static String names(Set<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().collect(Collectors.joining(","));
    }

    private static void readToTheEnd() {
        try {
            while (System.in.read() >= 0) {}
        } catch (java.io.IOException gone) {
            // As the end.
        }
    }
}
