// An instance of a Kafka Streams application that counts words, exactly once: WordCount SERVERS STATE_DIR.
//
// A record of "input" is a number; its words are its last three digits, each with its place: "ones7 tens0 hundreds3".
// They go through a repartition topic to a store with a changelog, and each count goes to "counts": the word as key,
// "ones7 12" as value.  It ends with status 0 on SIGTERM, with 1 when Kafka Streams gives up.

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

public final class WordCount {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put("application.id", "wordcount");
        config.put("bootstrap.servers", args[0]);
        config.put("state.dir", args[1]);
        config.put("processing.guarantee", "exactly_once_v2");
        // Each count goes on, not only the last one of a transaction.
        config.put("statestore.cache.max.bytes", "0");
        config.put("num.standby.replicas", "1");
        config.put("topic.min.insync.replicas", "2");
        // An instance that was killed is missed so soon.
        config.put("main.consumer.session.timeout.ms", "6000");
        config.put("main.consumer.heartbeat.interval.ms", "1000");
        config.put("reconnect.backoff.max.ms", "200");

        KafkaStreams streams = new KafkaStreams(topology(), config);
        CountDownLatch end = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((state, before) -> {
            if (state.hasCompletedShutdown()) {
                end.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
        end.await();
        Runtime.getRuntime().halt(1);
    }

    private static org.apache.kafka.streams.Topology topology() {
        Serde<String> strings = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("input", Consumed.with(Serdes.Bytes(), strings))
                .flatMapValues(WordCount::words)
                .groupBy((key, word) -> word, Grouped.with("words", strings, strings))
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                        .withKeySerde(strings)
                        .withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues((word, count) -> word + " " + count)
                .to("counts", Produced.with(strings, strings));
        return builder.build();
    }

    private static List<String> words(String number) {
        int value = Integer.parseInt(number);
        return List.of("ones" + value % 10, "tens" + value / 10 % 10, "hundreds" + value / 100 % 10);
    }
}
