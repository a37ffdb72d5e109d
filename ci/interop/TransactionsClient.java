// A transactional producer of Apache Kafka that writes transactions one after the other, while its broker may be killed:
// TransactionsClient SERVERS COUNT.  Transaction N writes N to both partitions of "out" twice and moves the group "g" on
// to offset N + 1 of "in"; every third one is aborted.  It prints a line for each that has ended.  Ends with status 0,
// or with an exception.

import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class TransactionsClient {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("transactional.id", "java");
        config.put("linger.ms", "0");
        config.put("max.block.ms", "120000");
        config.put("reconnect.backoff.max.ms", "200");
        StringSerializer strings = new StringSerializer();
        Properties group = new Properties();
        group.put("bootstrap.servers", args[0]);
        group.put("group.id", "g");
        StringDeserializer texts = new StringDeserializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config, strings, strings);
                KafkaConsumer<String, String> consumer = new KafkaConsumer<>(group, texts, texts)) {
            producer.initTransactions();
            for (int number = 0; number < Integer.parseInt(args[1]); number++) {
                write(producer, consumer.groupMetadata(), number);
                System.out.println(number);
            }
            producer.close(Duration.ofSeconds(10));
        }
    }

    private static void write(KafkaProducer<String, String> producer, ConsumerGroupMetadata group, int number)
            throws Exception {
        producer.beginTransaction();
        Future<RecordMetadata> last = null;
        for (int i = 0; i < 4; i++) {
            last = producer.send(new ProducerRecord<>("out", i % 2, null, Integer.toString(number)));
        }
        Map<TopicPartition, OffsetAndMetadata> offsets =
                Map.of(new TopicPartition("in", 0), new OffsetAndMetadata(number + 1));
        producer.sendOffsetsToTransaction(offsets, group);
        last.get();
        if (number % 3 == 2) {
            producer.abortTransaction();
        } else {
            producer.commitTransaction();
        }
    }
}
