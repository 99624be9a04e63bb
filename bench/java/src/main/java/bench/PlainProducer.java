package bench;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What the Java client can do at best: two threads, each one transaction over half of the records. */
final class PlainProducer {
    private static final int THREADS = 2;

    private PlainProducer() {}

    public static void main(String[] arguments) throws IOException {
        Host.serve(PlainProducer::run);
    }

    private static void run(Records records, Map<String, String> given) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        try {
            List<Future<?>> halves = new ArrayList<>();
            for (int thread = 0; thread < THREADS; thread++) {
                Properties settings = Host.kafka(given);
                settings.setProperty("transactional.id", given.get("id") + "-" + thread);
                int from = (int) ((long) records.count() * thread / THREADS);
                int to = (int) ((long) records.count() * (thread + 1) / THREADS);
                halves.add(threads.submit(() -> write(records, from, to, given.get("topic"), settings)));
            }
            for (Future<?> half : halves) {
                half.get();
            }
        } finally {
            threads.shutdown();
        }
    }

    private static void write(Records records, int from, int to, String topic, Properties settings) {
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int i = from; i < to; i++) {
                producer.send(new ProducerRecord<>(topic, records.key(i), records.value(i)));
            }
            producer.commitTransaction(); // raises if any of the sends failed
        }
    }
}
