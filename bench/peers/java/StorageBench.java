// Apache Kafka's own storage classes at work, one case in a JVM of its own, on the files that kcore wrote.
//
//   StorageBench CASE DATA WORK WARM_SECONDS ROUND_SECONDS
//
// Prints "ready" when the case is set up and warm.  Each line on standard input runs one round and prints "SECONDS CPU
// UNITS": the time spent inside Kafka, of it the CPU time of the thread that works, and what was done.  bench/peers/storage_cases.py does the same work with kcore; the
// cases have the same names there, and both count the same units.

import java.io.BufferedInputStream;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.SplittableRandom;
import java.util.stream.Stream;
import java.util.zip.CRC32C;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.apache.kafka.storage.internals.log.OffsetIndex;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public final class StorageBench {
    /** One piece of work: run() is timed and says how many units it did, before() is not timed. */
    private abstract static class Case {
        void before() throws Exception { }

        abstract long run() throws Exception;
    }

    private static final TopicPartition PARTITION = new TopicPartition("bench", 0);
    private static final int LIMIT = 256 << 20; // bytes written before a log starts anew
    private static final BrokerTopicStats STATS = new BrokerTopicStats();
    private static final KafkaScheduler SCHEDULER = new KafkaScheduler(1, true, "bench-");
    private static final ProducerStateManagerConfig PRODUCERS = new ProducerStateManagerConfig(86_400_000, false);

    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private static volatile long sink;
    private static File data;
    private static File work;

    public static void main(String[] args) throws Exception {
        data = new File(args[1]);
        work = new File(args[2]);
        double warm = Double.parseDouble(args[3]);
        double seconds = Double.parseDouble(args[4]);
        SCHEDULER.startup();
        Case found = make(args[0]);
        measure(found, warm);
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        while (commands.readLine() != null) {
            System.out.println(measure(found, seconds));
        }
        System.exit(0); // the scheduler's threads have nothing left that matters
    }

    private static String measure(Case what, double seconds) throws Exception {
        long spent = 0;
        long cpu = 0;
        long units = 0;
        while (cpu < seconds * 1e9) { // of CPU time: a busy machine must not cut the warm-up short
            what.before();
            long start = System.nanoTime();
            long cpuStart = THREADS.getCurrentThreadCpuTime();
            units += what.run();
            cpu += THREADS.getCurrentThreadCpuTime() - cpuStart;
            spent += System.nanoTime() - start;
        }
        return spent / 1e9 + " " + cpu / 1e9 + " " + units;
    }

    private static Case make(String name) throws Exception {
        String[] part = name.split(":");
        switch (part[0]) {
            case "segment_append": return segmentAppend(part[1]);
            case "leader_append": return logAppend(part[1], true, part.length > 2);
            case "follower_append": return logAppend(part[1], false, false);
            case "recover": return recover(part[1]);
            case "header_scan": return headerScan(part[1]);
            case "translate_offset": return translateOffset(part[1]);
            case "log_read": return logRead(part[1]);
            case "index_lookup": return indexLookup(part[1]);
            case "validate": return validate(part[1], part[2]);
            case "convert": return validate(part[1], "none");
            case "records_to_columns": return iterate(part[1]);
            case "columns_to_batches": return build(part[1]);
            case "clean": return clean();
            case "offset_map": return offsetMap(part[1]);
            default: throw new IllegalArgumentException(name);
        }
    }

    // -- the data -----------------------------------------------------------------------------------------------------

    /** Record sets of a file: each has its length, four bytes, before it. */
    private static List<MemoryRecords> sets(String name) throws IOException {
        List<MemoryRecords> found = new ArrayList<>();
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(Files.newInputStream(new File(data, name).toPath()), 1 << 20))) {
            while (true) {
                byte[] bytes = new byte[in.readInt()];
                in.readFully(bytes);
                found.add(MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)));
            }
        } catch (EOFException end) {
            return found;
        }
    }

    private static MutableRecordBatch batch(MemoryRecords records) {
        return records.batches().iterator().next();
    }

    /** A pool of single batches, and where the log they are appended to ends. */
    private static final class Pool {
        final List<MemoryRecords> records;
        final List<MutableRecordBatch> batches = new ArrayList<>();
        final int[] counts;
        long end;

        Pool(String name) throws IOException {
            records = sets(name);
            counts = new int[records.size()];
            for (MemoryRecords set : records) {
                MutableRecordBatch batch = batch(set);
                counts[batches.size()] = (int) (batch.lastOffset() - batch.baseOffset()) + 1;
                batches.add(batch);
            }
        }

        long bytes() {
            return records.stream().mapToLong(MemoryRecords::sizeInBytes).sum();
        }

        /** Base offset 0 in each batch, as a producer sends it. */
        void fromProducer() {
            for (int i = 0; i < counts.length; i++) {
                batches.get(i).setLastOffset(counts[i] - 1);
            }
        }

        /** The next sequence numbers of an idempotent producer. */
        void inSequence() {
            for (int i = 0; i < counts.length; i++) {
                ByteBuffer buffer = records.get(i).buffer();
                buffer.putLong(43, 4711).putShort(51, (short) 0).putInt(53, (int) end);
                CRC32C crc = new CRC32C();
                crc.update(buffer.duplicate().position(21));
                buffer.putInt(17, (int) crc.getValue());
                end += counts[i];
            }
        }

        /** The next offsets of the log, as a leader sends them. */
        void fromLeader() {
            for (int i = 0; i < counts.length; i++) {
                end += counts[i];
                batches.get(i).setLastOffset(end - 1);
            }
        }
    }

    // -- files --------------------------------------------------------------------------------------------------------

    private static int directories;

    private static File freshDirectory() throws IOException {
        File directory = new File(work, "bench" + directories++ + "-0");
        remove(directory);
        Files.createDirectories(directory.toPath());
        return directory;
    }

    private static void remove(File directory) throws IOException {
        if (directory.exists()) {
            try (Stream<Path> paths = Files.walk(directory.toPath())) {
                for (Path path : (Iterable<Path>) paths.sorted(Comparator.reverseOrder())::iterator) {
                    Files.deleteIfExists(path);
                }
            }
        }
    }

    /** A directory with the .log files of another one (hard links) and copies of everything else. */
    private static File linked(String name) throws IOException {
        File directory = freshDirectory();
        for (File file : new File(data, name).listFiles()) {
            Path to = directory.toPath().resolve(file.getName());
            if (file.getName().endsWith(".log")) {
                Files.createLink(to, file.toPath());
            } else {
                Files.copy(file.toPath(), to);
            }
        }
        return directory;
    }

    private static LogConfig config(Object... settings) {
        Map<String, Object> map = new HashMap<>();
        for (int i = 0; i < settings.length; i += 2) {
            map.put((String) settings[i], settings[i + 1]);
        }
        return new LogConfig(map);
    }

    private static LogSegment segment(File directory, boolean exists) throws IOException {
        return LogSegment.open(directory, 0L, config(), Time.SYSTEM, exists, 0, false, "");
    }

    private static UnifiedLog log(File directory, LogConfig config) throws IOException {
        return UnifiedLog.create(directory, config, 0L, 0L, SCHEDULER, STATS, Time.SYSTEM, 900_000, PRODUCERS, 600_000,
            new LogDirFailureChannel(5), true, Optional.empty());
    }

    private static LeaderEpochFileCache epochs(File directory) throws IOException {
        File file = LeaderEpochCheckpointFile.newFile(directory);
        return new LeaderEpochFileCache(PARTITION, new LeaderEpochCheckpointFile(file, new LogDirFailureChannel(5)), SCHEDULER);
    }

    /** The segment of a directory, its indexes rebuilt, and how to recover it once more. */
    private static final class Recovered {
        final File directory;
        final LogSegment segment;
        final LeaderEpochFileCache epochs;

        Recovered(String name) throws IOException {
            directory = linked(name);
            segment = segment(directory, true);
            epochs = epochs(directory);
            recover();
        }

        void recover() throws IOException {
            int cut = segment.recover(new ProducerStateManager(PARTITION, directory, 900_000, PRODUCERS, Time.SYSTEM), epochs);
            if (cut != 0) {
                throw new IllegalStateException("recovery cut " + cut + " bytes");
            }
        }

        long end() throws IOException {
            return segment.readNextOffset();
        }
    }

    // -- appends ------------------------------------------------------------------------------------------------------

    private static Case segmentAppend(String name) throws IOException {
        Pool pool = new Pool(name);
        long bytes = pool.bytes();
        return new Case() {
            private LogSegment segment;

            @Override
            void before() throws IOException {
                if (segment == null || segment.size() + bytes > LIMIT) {
                    if (segment != null) {
                        segment.deleteIfExists();
                    }
                    segment = segment(freshDirectory(), false);
                    pool.end = 0;
                }
                pool.fromLeader();
            }

            @Override
            long run() throws IOException {
                for (int i = 0; i < pool.counts.length; i++) {
                    segment.append(pool.batches.get(i).lastOffset(), pool.records.get(i));
                }
                return bytes;
            }
        };
    }

    private static Case logAppend(String name, boolean leader, boolean idempotent) throws IOException {
        Pool pool = new Pool(name);
        long bytes = pool.bytes();
        return new Case() {
            private File directory;
            private UnifiedLog log;

            @Override
            void before() throws IOException {
                if (log == null || log.size() + bytes > LIMIT) {
                    if (log != null) {
                        log.delete();
                        remove(directory);
                    }
                    directory = freshDirectory();
                    log = log(directory, config());
                    pool.end = 0;
                }
                if (leader) {
                    pool.fromProducer();
                    if (idempotent) {
                        pool.inSequence();
                    }
                } else {
                    pool.fromLeader();
                }
            }

            @Override
            long run() throws IOException {
                for (MemoryRecords records : pool.records) {
                    if (leader) {
                        log.appendAsLeader(records, 0);
                    } else {
                        log.appendAsFollower(records, 0);
                    }
                }
                return bytes;
            }
        };
    }

    // -- what is read from files --------------------------------------------------------------------------------------

    private static Case recover(String name) throws IOException {
        Recovered found = new Recovered(name);
        return new Case() {
            @Override
            long run() throws IOException {
                found.recover();
                return found.segment.size();
            }
        };
    }

    private static Case headerScan(String name) throws IOException {
        LogSegment segment = segment(linked(name), true);
        return new Case() {
            @Override
            long run() {
                long sum = 0;
                long batches = 0;
                for (FileChannelRecordBatch batch : segment.log().batches()) {
                    sum += batch.lastOffset() + batch.maxTimestamp();
                    batches++;
                }
                sink += sum;
                return batches;
            }
        };
    }

    private static long[] targets(long end) {
        SplittableRandom random = new SplittableRandom(7);
        long[] targets = new long[10_000];
        for (int i = 0; i < targets.length; i++) {
            targets[i] = random.nextLong(end);
        }
        return targets;
    }

    private static Case translateOffset(String name) throws IOException {
        Recovered found = new Recovered(name);
        long[] targets = targets(found.end());
        return new Case() {
            @Override
            long run() throws IOException {
                long sum = 0;
                for (long target : targets) {
                    sum += found.segment.translateOffset(target).position;
                }
                sink += sum;
                return targets.length;
            }
        };
    }

    private static Case logRead(String name) throws IOException {
        Recovered found = new Recovered(name);
        long end = found.end();
        found.segment.flush();
        found.segment.close();
        UnifiedLog log = log(found.directory, config());
        log.updateHighWatermark(log.logEndOffset());
        long[] targets = targets(end);
        return new Case() {
            @Override
            long run() throws IOException {
                long sum = 0;
                for (long target : targets) {
                    sum += log.read(target, 1 << 20, FetchIsolation.HIGH_WATERMARK, true).records.sizeInBytes();
                }
                sink += sum;
                return targets.length;
            }
        };
    }

    private static Case indexLookup(String which) throws IOException {
        int entries = (10 << 20) / 8;
        OffsetIndex index = new OffsetIndex(new File(freshDirectory(), "00000000000000000000.index"), 0L, 10 << 20, true);
        for (int i = 0; i < entries; i++) {
            index.append(i * 16L + 15, i * 1600);
        }
        long[] targets = targets(which.equals("random") ? entries * 16L : 16_000);
        if (which.equals("hot")) {
            for (int i = 0; i < targets.length; i++) {
                targets[i] += (entries - 1000) * 16L;
            }
        }
        return new Case() {
            @Override
            long run() {
                long sum = 0;
                for (long target : targets) {
                    sum += index.lookup(target).position();
                }
                sink += sum;
                return targets.length;
            }
        };
    }

    // -- records ------------------------------------------------------------------------------------------------------

    /** Magic 2 in place; magic 1 becomes magic 2. */
    private static Case validate(String name, String codec) throws IOException {
        List<MemoryRecords> sets = sets(name);
        CompressionType type = CompressionType.forName(codec);
        Compression compression = Compression.of(type).build();
        LogValidator.MetricsRecorder metrics = UnifiedLog.newValidatorMetricsRecorder(STATS.allTopicsStats());
        BufferSupplier buffers = BufferSupplier.create();
        Pool pool = batch(sets.get(0)).magic() == 2 ? new Pool(name) : null;
        List<MemoryRecords> records = pool == null ? sets : pool.records;
        return new Case() {
            private long end;

            @Override
            void before() {
                if (pool != null) {
                    pool.fromProducer();
                }
            }

            @Override
            long run() {
                long start = end;
                for (MemoryRecords set : records) {
                    PrimitiveRef.LongRef offset = PrimitiveRef.ofLong(end);
                    LogValidator validator = new LogValidator(set, PARTITION, Time.SYSTEM, type, compression, false, (byte) 2,
                        TimestampType.CREATE_TIME, Long.MAX_VALUE, 3_600_000L, 0, AppendOrigin.CLIENT);
                    sink += validator.validateMessagesAndAssignOffsets(offset, metrics, buffers).validatedRecords().sizeInBytes();
                    end = offset.value;
                }
                return end - start;
            }
        };
    }

    private static Case iterate(String name) throws IOException {
        Pool pool = new Pool(name);
        BufferSupplier buffers = BufferSupplier.create();
        return new Case() {
            @Override
            long run() {
                long sum = 0;
                long records = 0;
                for (MutableRecordBatch batch : pool.batches) {
                    try (CloseableIterator<Record> iterator = batch.streamingIterator(buffers)) {
                        while (iterator.hasNext()) {
                            Record record = iterator.next();
                            sum += record.offset() + record.timestamp() + record.keySize() + record.valueSize();
                            records++;
                        }
                    }
                }
                sink += sum;
                return records;
            }
        };
    }

    private static Case build(String name) throws IOException {
        Pool pool = new Pool(name);
        List<long[]> timestamps = new ArrayList<>();
        List<byte[][]> values = new ArrayList<>();
        for (MutableRecordBatch batch : pool.batches) {
            List<Long> times = new ArrayList<>();
            List<byte[]> found = new ArrayList<>();
            for (Record record : batch) {
                byte[] value = new byte[record.valueSize()];
                record.value().get(value);
                found.add(value);
                times.add(record.timestamp());
            }
            timestamps.add(times.stream().mapToLong(Long::longValue).toArray());
            values.add(found.toArray(new byte[0][]));
        }
        ByteBuffer buffer = ByteBuffer.allocate((int) pool.records.stream().mapToLong(MemoryRecords::sizeInBytes).max().orElseThrow() + 4096);
        return new Case() {
            @Override
            long run() {
                long records = 0;
                for (int b = 0; b < values.size(); b++) {
                    byte[][] of = values.get(b);
                    long[] at = timestamps.get(b);
                    buffer.clear();
                    MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, (byte) 2, Compression.NONE, TimestampType.CREATE_TIME, 0L);
                    for (int i = 0; i < of.length; i++) {
                        builder.appendWithOffset(i, at[i], null, of[i]);
                    }
                    sink += builder.build().sizeInBytes();
                    records += of.length;
                }
                return records;
            }
        };
    }

    // -- the cleaner --------------------------------------------------------------------------------------------------

    private static Case clean() throws Exception {
        Throttler unthrottled = new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(128 << 20), 512 << 10, (1 << 20) + 12, 0.9, unthrottled, Time.SYSTEM, tp -> { });
        return new Case() {
            private File directory;
            private UnifiedLog log;
            private long bytes;

            @Override
            void before() throws Exception {
                if (log != null) {
                    log.delete();
                    remove(directory);
                }
                directory = linked("keyed");
                log = log(directory, config("cleanup.policy", "compact"));
                log.updateHighWatermark(log.logEndOffset());
                bytes = log.size();
            }

            @Override
            long run() throws Exception {
                cleaner.clean(new LogToClean(log, 0L, log.activeSegment().baseOffset(), false));
                if (log.size() >= bytes) {
                    throw new IllegalStateException("nothing was cleaned: " + bytes + " bytes before, " + log.size() + " after");
                }
                return bytes;
            }
        };
    }

    private static Case offsetMap(String which) throws Exception {
        int keys = 1_000_000;
        SkimpyOffsetMap map = new SkimpyOffsetMap(64 << 20);
        ByteBuffer[] key = new ByteBuffer[keys];
        for (int i = 0; i < keys; i++) {
            key[i] = ByteBuffer.allocate(16).putLong(i * 0x9E3779B97F4A7C15L).putLong(i).flip();
        }
        boolean put = which.equals("put");
        if (!put) {
            for (int i = 0; i < keys; i++) {
                map.put(key[i].duplicate(), i);
            }
        }
        return new Case() {
            @Override
            void before() {
                if (put) {
                    map.clear();
                }
                for (ByteBuffer one : key) {
                    one.rewind();
                }
            }

            @Override
            long run() throws Exception {
                long sum = 0;
                for (int i = 0; i < keys; i++) {
                    if (put) {
                        map.put(key[i], i);
                    } else {
                        sum += map.get(key[i]);
                    }
                }
                sink += sum;
                return keys;
            }
        };
    }
}
