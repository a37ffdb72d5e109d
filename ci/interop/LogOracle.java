// What Apache Kafka's own storage classes make of a partition's directory.  Commands come in as lines of words, answers
// go out as lines, the last of each answer being ".":
//
//   load DIRECTORY CLEAN RECOVERY_POINT LOG_START_OFFSET   open it as a broker does, and tell everything that is in it
//   check DIRECTORY                                        hold each file of it to Kafka's own checks
//   write DIRECTORY KIND                                   make such a log, and leave it open as a crash would
//
// The clock stands still.  Segments are small, or as Kafka's defaults are after `LogOracle defaults`.  ci/interop/oracle.py
// asks, and tells the same of kcore's log in the same words.

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.zip.CRC32;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.TransactionIndex;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public final class LogOracle {
    private static final long NOW = 1_700_000_000_000L;
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    private static final ProducerStateManagerConfig PRODUCERS = new ProducerStateManagerConfig(86_400_000, false);
    private static final BrokerTopicStats STATS = new BrokerTopicStats();
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private static boolean hasDefaults;

    public static void main(String[] args) throws IOException {
        hasDefaults = args.length > 0 && args[0].equals("defaults");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] word = line.split("\t");
            try {
                File directory = new File(word[1]);
                switch (word[0]) {
                    case "load":
                        load(directory, Boolean.parseBoolean(word[2]), Long.parseLong(word[3]), Long.parseLong(word[4]));
                        break;
                    case "check":
                        check(directory);
                        break;
                    case "write":
                        new Writer(directory, word[2]).write();
                        break;
                    default:
                        throw new IllegalArgumentException(line);
                }
            } catch (Exception error) {
                error.printStackTrace();
                OUT.println("error " + error);
            }
            OUT.println(".");
            OUT.flush();
        }
        System.exit(0);
    }

    // -- time and settings ----------------------------------------------------------------------------------------------

    /** Stands still. */
    private static final Time TIME = new Time() {
        @Override
        public long milliseconds() {
            return NOW;
        }

        @Override
        public long nanoseconds() {
            return NOW * 1_000_000;
        }

        @Override
        public void sleep(long ms) { }

        @Override
        public void waitObject(Object what, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    };

    /** What is to be done at once is done at once; what is to be done later or again is not. */
    private static final Scheduler SCHEDULER = new Scheduler() {
        private final ScheduledThreadPoolExecutor never = new ScheduledThreadPoolExecutor(0);

        @Override
        public void startup() { }

        @Override
        public void shutdown() { }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (delayMs <= 0 && periodMs < 0) {
                task.run();
            }
            return never.schedule(() -> { }, 1, TimeUnit.DAYS); // something to cancel
        }

        @Override
        public void resizeThreadPool(int threads) { }
    };

    /** The settings that oracle.py gives to kcore. */
    private static LogConfig config(String... settings) {
        Map<String, Object> map = new HashMap<>();
        if (!hasDefaults) {
            map.put(LogConfig.INTERNAL_SEGMENT_BYTES_CONFIG, 20_000);
            map.put("index.interval.bytes", 1_000);
            map.put("segment.index.bytes", 4_096);
        }
        for (int i = 0; i < settings.length; i += 2) {
            map.put(settings[i], settings[i + 1]);
        }
        return new LogConfig(map);
    }

    private static UnifiedLog open(File directory, LogConfig config, boolean clean, long recoveryPoint, long start) throws IOException {
        return UnifiedLog.create(directory, config, start, recoveryPoint, SCHEDULER, STATS, TIME, 900_000, PRODUCERS, 600_000,
            new LogDirFailureChannel(5), clean, Optional.empty());
    }

    // -- load -----------------------------------------------------------------------------------------------------------

    private static void load(File directory, boolean clean, long recoveryPoint, long start) throws IOException {
        UnifiedLog log = open(directory, config(), clean, recoveryPoint, start);
        log.updateHighWatermark(log.logEndOffset());
        OUT.println("start " + log.logStartOffset());
        OUT.println("end " + log.logEndOffset());
        OUT.println("stable " + log.lastStableOffset());
        for (LogSegment segment : log.logSegments()) {
            OUT.println("segment " + segment.baseOffset() + " " + segment.size());
        }
        for (EpochEntry entry : log.leaderEpochCache().epochEntries()) {
            OUT.println("epoch " + entry.epoch() + " " + entry.startOffset());
        }
        for (ProducerStateEntry entry : new TreeMap<>(log.producerStateManager().activeProducers()).values()) {
            print(entry);
        }
        for (LogSegment segment : log.logSegments()) {
            for (AbortedTxn txn : segment.txnIndex().allAbortedTxns()) {
                OUT.println("aborted " + txn.producerId() + " " + txn.firstOffset() + " " + txn.lastOffset() + " " + txn.lastStableOffset());
            }
        }
        for (long offset = log.logStartOffset(); offset < log.logEndOffset(); ) {
            offset = printRecords(log, offset);
        }
        OUT.println("committed " + committed(log));
        log.close();
    }

    private static void print(ProducerStateEntry entry) {
        String line = "producer " + entry.producerId() + " " + entry.producerEpoch() + " " + entry.coordinatorEpoch() + " "
            + entry.lastTimestamp() + " " + entry.currentTxnFirstOffset().orElse(-1);
        BatchMetadata last = null; // after a recovery Kafka has forgotten the ones before it
        for (BatchMetadata batch : entry.batchMetadata()) {
            last = batch;
        }
        OUT.println(last == null ? line : line + " " + last.lastSeq() + " " + last.lastOffset() + " " + last.offsetDelta());
    }

    /** One read's worth of records; the offset to go on with. */
    private static long printRecords(UnifiedLog log, long offset) throws IOException {
        long next = log.logEndOffset();
        for (RecordBatch batch : log.read(offset, 1 << 16, FetchIsolation.LOG_END, true).records.batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                if (record.offset() >= offset) {
                    print(batch, record);
                }
            }
            next = batch.nextOffset();
        }
        return next;
    }

    private static void print(RecordBatch batch, Record record) {
        if (batch.isControlBatch()) {
            OUT.println("control " + record.offset() + " " + ControlRecordType.parse(record.key()));
            return;
        }
        StringBuilder line = new StringBuilder("record " + record.offset() + " " + batch.timestampType().name + " " + record.timestamp()
            + " " + sum(record.key()) + " " + sum(record.value()));
        for (Header header : record.headers()) {
            byte[] value = header.value();
            line.append(" ").append(sum(ByteBuffer.wrap(header.key().getBytes(StandardCharsets.UTF_8)))).append("=")
                .append(sum(value == null ? null : ByteBuffer.wrap(value)));
        }
        OUT.println(line);
    }

    private static String sum(ByteBuffer bytes) {
        if (bytes == null) {
            return "null";
        }
        CRC32 crc = new CRC32();
        crc.update(bytes.duplicate());
        return bytes.remaining() + ":" + Long.toHexString(crc.getValue());
    }

    /** The offsets that a consumer with isolation.level=read_committed is given, as ranges. */
    private static String committed(UnifiedLog log) throws IOException {
        List<Long> offsets = new ArrayList<>();
        for (long offset = log.logStartOffset(); offset < log.lastStableOffset(); ) {
            FetchDataInfo found = log.read(offset, 1 << 16, FetchIsolation.TXN_COMMITTED, true);
            List<FetchResponseData.AbortedTransaction> aborted = new ArrayList<>(found.abortedTransactions.orElse(List.of()));
            aborted.sort((a, b) -> Long.compare(a.firstOffset(), b.firstOffset()));
            Set<Long> aborting = new HashSet<>();
            long next = log.lastStableOffset();
            for (RecordBatch batch : found.records.batches()) {
                while (!aborted.isEmpty() && aborted.get(0).firstOffset() <= batch.lastOffset()) {
                    aborting.add(aborted.remove(0).producerId());
                }
                if (batch.isControlBatch()) {
                    aborting.remove(batch.producerId());
                } else if (!batch.isTransactional() || !aborting.contains(batch.producerId())) {
                    for (Record record : batch) {
                        if (record.offset() >= offset) {
                            offsets.add(record.offset());
                        }
                    }
                }
                next = batch.nextOffset();
            }
            offset = next;
        }
        StringBuilder ranges = new StringBuilder();
        for (int i = 0; i < offsets.size(); ) {
            int j = i;
            while (j + 1 < offsets.size() && offsets.get(j + 1) == offsets.get(j) + 1) {
                j++;
            }
            ranges.append(i == 0 ? "" : ",").append(offsets.get(i)).append("-").append(offsets.get(j));
            i = j + 1;
        }
        return ranges.toString();
    }

    // -- check ----------------------------------------------------------------------------------------------------------

    private static void check(File directory) throws IOException {
        TopicPartition partition = UnifiedLog.parseTopicPartitionName(directory);
        LeaderEpochCheckpointFile epochs = new LeaderEpochCheckpointFile(LeaderEpochCheckpointFile.newFile(directory), new LogDirFailureChannel(5));
        int entries = epochs.read().size();
        for (File snapshot : directory.listFiles((parent, name) -> name.endsWith(".snapshot"))) {
            ProducerStateManager.readSnapshot(snapshot);
        }
        int segments = 0;
        for (File log : directory.listFiles((parent, name) -> name.endsWith(".log"))) {
            check(directory, partition, UnifiedLog.offsetFromFile(log));
            segments++;
        }
        OUT.println("checked " + segments + " segments, " + entries + " epochs");
    }

    /** A segment's indexes are sane, and recovery cuts nothing off and finds index entries where there were some. */
    private static void check(File directory, TopicPartition partition, long base) throws IOException {
        LogSegment segment = LogSegment.open(directory, base, config(), TIME, true, 0, false, "");
        segment.sanityCheck(false);
        segment.offsetIndex().sanityCheck();
        segment.timeIndex().sanityCheck();
        try (TransactionIndex aborted = new TransactionIndex(base, UnifiedLog.transactionIndexFile(directory, base, ""))) {
            aborted.sanityCheck();
        }
        int size = segment.size();
        int entries = segment.offsetIndex().entries();
        LeaderEpochFileCache epochs = new LeaderEpochFileCache(partition,
            new LeaderEpochCheckpointFile(LeaderEpochCheckpointFile.newFile(directory), new LogDirFailureChannel(5)), SCHEDULER);
        ProducerStateManager state = new ProducerStateManager(partition, directory, 900_000, PRODUCERS, TIME);
        int cut = segment.recover(state, epochs);
        if (cut != 0 || segment.size() != size) {
            throw new IllegalStateException("recovery of segment " + base + " cut " + cut + " bytes");
        }
        OUT.println("index " + base + " " + entries + " " + segment.offsetIndex().entries());
        segment.close();
    }

    // -- write ----------------------------------------------------------------------------------------------------------

    private static final class Writer {
        private final String kind;
        private final Random random;
        private final UnifiedLog log;
        private final int[] sequence = new int[4];
        private int epoch;

        Writer(File directory, String kind) throws IOException {
            this.kind = kind;
            random = new Random(kind.hashCode());
            directory.mkdirs();
            String policy = kind.equals("compacted") ? "compact" : "delete";
            String type = kind.equals("append-time") ? "LogAppendTime" : "CreateTime";
            log = open(directory, config("cleanup.policy", policy, "message.timestamp.type", type), true, 0, 0);
        }

        void write() throws Exception {
            switch (kind) {
                case "plain":
                case "append-time":
                    plain(300);
                    break;
                case "epochs":
                    for (epoch = 0; epoch < 12; epoch += 3) {
                        plain(60);
                    }
                    break;
                case "idempotent":
                    for (int n = 0; n < 250; n++) {
                        append(batch(1 + random.nextInt(6), random.nextInt(4), false));
                    }
                    break;
                case "transactions":
                    transactions(60);
                    append(batch(3, 0, true)); // never ends
                    plain(5);
                    break;
                case "truncated":
                    plain(200);
                    transactions(20);
                    log.truncateTo(log.logEndOffset() * 2 / 3);
                    epoch = 4;
                    plain(20);
                    break;
                case "log-start":
                    transactions(50);
                    log.updateHighWatermark(log.logEndOffset());
                    log.maybeIncrementLogStartOffset(log.logEndOffset() / 2, LogStartOffsetIncrementReason.ClientRecordDeletion);
                    log.deleteOldSegments();
                    break;
                case "compacted":
                    compacted();
                    break;
                default:
                    throw new IllegalArgumentException(kind);
            }
            OUT.println("start " + log.logStartOffset());
            OUT.println("recovery " + log.activeSegment().baseOffset());
        }

        private void append(MemoryRecords records) throws IOException {
            log.appendAsLeader(records, epoch);
        }

        private void plain(int batches) throws IOException {
            for (int n = 0; n < batches; n++) {
                append(batch(1 + random.nextInt(8), -1, false));
            }
        }

        private void transactions(int rounds) throws IOException {
            for (int n = 0; n < rounds; n++) {
                for (int producer = 0; producer < 3; producer++) {
                    append(batch(1 + random.nextInt(4), producer, true));
                }
                plain(1);
                for (int producer = 0; producer < 3; producer++) {
                    ControlRecordType type = random.nextInt(3) == 0 ? ControlRecordType.ABORT : ControlRecordType.COMMIT;
                    EndTransactionMarker marker = new EndTransactionMarker(type, n / 20);
                    log.appendAsLeader(MemoryRecords.withEndTransactionMarker(NOW, producer, (short) 0, marker), epoch,
                        AppendOrigin.COORDINATOR, RequestLocal.noCaching(), VerificationGuard.SENTINEL, (short) 1);
                }
            }
        }

        private MemoryRecords batch(int count, int producer, boolean transactional) {
            MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 16), (byte) 2,
                Compression.of(CompressionType.forName(CODECS[random.nextInt(CODECS.length)])).build(), TimestampType.CREATE_TIME, 0L, NOW,
                producer, (short) (producer < 0 ? -1 : 0), producer < 0 ? -1 : sequence[producer], transactional, -1);
            for (int n = 0; n < count; n++) {
                builder.appendWithOffset(n, NOW - 5_000 + random.nextInt(10_000), key(), value(), headers());
            }
            if (producer >= 0) {
                sequence[producer] += count;
            }
            return builder.build();
        }

        private byte[] key() {
            if (kind.equals("compacted")) {
                return ("key-" + random.nextInt(60)).getBytes(StandardCharsets.US_ASCII);
            }
            return random.nextInt(3) == 0 ? null : new byte[random.nextInt(10)];
        }

        private byte[] value() {
            if (random.nextInt(8) == 0) {
                return null;
            }
            byte[] bytes = new byte[random.nextInt(300)];
            if (random.nextBoolean()) {
                random.nextBytes(bytes);
            }
            return bytes;
        }

        private Header[] headers() {
            if (random.nextInt(4) > 0) {
                return new Header[0];
            }
            return new Header[] {new RecordHeader("name", new byte[] {1, 2}), new RecordHeader("näme", null), new RecordHeader("", new byte[0])};
        }

        private void compacted() throws Exception {
            plain(150);
            transactions(15);
            log.roll();
            log.updateHighWatermark(log.logEndOffset());
            Throttler unthrottled = new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", TIME);
            Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(1 << 20), 1 << 16, 1 << 20, 0.9, unthrottled, TIME, partition -> { });
            cleaner.clean(new LogToClean(log, 0L, log.activeSegment().baseOffset(), false));
            plain(40); // behind what was cleaned
        }
    }
}
