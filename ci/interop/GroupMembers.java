// Consumers of Apache Kafka in one group, of either protocol, that come and go as standard input says:
// GroupMembers SERVERS GROUP TOPIC.  Lines of input: "add NAME PROTOCOL [ASSIGNOR]" and "close NAME".  Lines of output:
// "NAME gets|gives|loses PARTITION ...", "NAME reads VALUE", "NAME ends" and "NAME fails REASON".  Before a member gives
// up partitions it commits what it has read.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public final class GroupMembers {
    public static void main(String[] args) throws Exception {
        Map<String, Member> members = new HashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("add")) {
                Member member = new Member(words[1], settings(args, words), args[2]);
                members.put(words[1], member);
                member.start();
            } else {
                members.remove(words[1]).isClosing = true;
            }
        }
        for (Member member : members.values()) member.isClosing = true;
    }

    private static Properties settings(String[] args, String[] words) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("client.id", words[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("group.protocol", words[2]);
        if (words[2].equals("classic")) {
            settings.put("session.timeout.ms", "30000");
            settings.put("heartbeat.interval.ms", "200");
            settings.put("partition.assignment.strategy", words[3]);
        }
        return settings;
    }

    private static final class Member extends Thread implements ConsumerRebalanceListener {
        volatile boolean isClosing;
        private final KafkaConsumer<String, String> consumer;

        Member(String name, Properties settings, String topic) {
            super(name);
            consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(topic), this);
        }

        @Override
        public void run() {
            try {
                while (!isClosing) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                        say("reads " + record.value());
                    }
                }
                consumer.commitSync();  // finds a coordinator that has moved; while it closes, it does not look for it
                consumer.close();
                say("ends");
            } catch (RuntimeException error) {
                say("fails " + error);
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            say("gets" + numbers(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            Map<TopicPartition, OffsetAndMetadata> offsets = partitions.stream()
                    .collect(Collectors.toMap(p -> p, p -> new OffsetAndMetadata(consumer.position(p))));
            if (!offsets.isEmpty()) consumer.commitSync(offsets);
            say("gives" + numbers(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            say("loses" + numbers(partitions));
        }

        private static String numbers(Collection<TopicPartition> partitions) {
            return partitions.stream().map(p -> " " + p.partition()).collect(Collectors.joining());
        }

        private void say(String what) {
            System.out.println(getName() + " " + what);
        }
    }
}
