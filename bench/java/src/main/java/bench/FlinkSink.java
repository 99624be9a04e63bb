package bench;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.JobManagerOptions;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Flink's KafkaSink, EXACTLY_ONCE, on a MiniCluster that is there before the clock starts. The source counts; the
 * serializers take the record of that number out of memory, in the same task, so nothing is copied on the way.
 * Runtime mode BATCH: a load has an end, and is committed there without waiting for a checkpoint's turn. With a "rate" it
 * is a stream of so many records a second, whose values begin with the milliseconds at which they were made.
 */
final class FlinkSink {
    private static final int PARALLELISM = 2;
    private static final String LOOPBACK = "127.0.0.1";

    private static volatile Records records;

    private FlinkSink() {}

    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.set(JobManagerOptions.BIND_HOST, LOOPBACK); // the blob server
        settings.set(RestOptions.BIND_ADDRESS, LOOPBACK);
        settings.set(RestOptions.ADDRESS, LOOPBACK);
        MiniCluster cluster = new MiniCluster(
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(settings)
                        .setCommonBindAddress(LOOPBACK)
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(PARALLELISM)
                        .withRandomPorts()
                        .build());
        cluster.start();
        Host.serve((loaded, given) -> run(cluster, loaded, given));
    }

    private static void run(MiniCluster cluster, Records loaded, Map<String, String> given) throws Exception {
        records = loaded;
        Configuration settings = new Configuration();
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        StreamExecutionEnvironment job = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        job.setParallelism(PARALLELISM);
        boolean isStream = given.containsKey("rate");
        job.setRuntimeMode(isStream ? RuntimeExecutionMode.STREAMING : RuntimeExecutionMode.BATCH);
        if (isStream) {
            job.enableCheckpointing(Long.parseLong(given.get("checkpoint.ms")));
        }
        long rate = isStream ? Long.parseLong(given.get("rate")) : 0;
        long count = isStream ? rate * Long.parseLong(given.get("seconds")) : loaded.count();
        job.getConfig().enableObjectReuse();
        KafkaSink<Long> sink = KafkaSink.<Long>builder()
                .setBootstrapServers(given.get("kafka.bootstrap.servers"))
                .setKafkaProducerConfig(Host.kafka(given))
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(given.get("naming")))
                .setTransactionalIdPrefix(given.get("id"))
                .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic(given.get("topic"))
                        .setKeySerializationSchema(isStream ? new Number() : new Key())
                        .setValueSerializationSchema(isStream ? new Paced(rate / PARALLELISM) : new Value())
                        .build())
                .build();
        job.fromSource(new NumberSequenceSource(0, count - 1), WatermarkStrategy.noWatermarks(), "numbers")
                .sinkTo(sink);
        cluster.executeJobBlocking(job.getStreamGraph().getJobGraph());
    }

    // classes, because Flink reads their types off them, which it cannot do with lambdas
    private static final class Key implements SerializationSchema<Long> {
        @Override
        public byte[] serialize(Long number) {
            return records.key(number.intValue());
        }
    }

    private static final class Value implements SerializationSchema<Long> {
        @Override
        public byte[] serialize(Long number) {
            return records.value(number.intValue());
        }
    }

    private static final class Number implements SerializationSchema<Long> {
        @Override
        public byte[] serialize(Long number) {
            return number.toString().getBytes(StandardCharsets.UTF_8);
        }
    }

    /** Made when its turn has come, of so many in a second. */
    private static final class Paced implements SerializationSchema<Long> {
        private static final String PAD = " " + "x".repeat(90);
        private final long rate;
        private transient long begun;
        private transient long made;

        Paced(long rate) {
            this.rate = rate;
        }

        @Override
        public byte[] serialize(Long number) {
            begun = begun == 0 ? System.nanoTime() : begun;
            long early = begun + made++ * 1_000_000_000L / rate - System.nanoTime();
            if (early > 0) {
                LockSupport.parkNanos(early);
            }
            return (System.currentTimeMillis() + PAD).getBytes(StandardCharsets.UTF_8);
        }
    }
}
