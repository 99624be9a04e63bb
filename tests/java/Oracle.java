// What Kafka's own Java client does, for tests: resident, one request per line on stdin, answers on stdout.
//
//   partitions <count> <key> <key> ...       -> one line: the partition of each key
//   read <bootstrap> <isolation> <topic> <partition>:<offset> ...
//                                            -> a line for each record from these offsets up to what the isolation
//                                               level sees now, then a line with a dot
//
// Bytes are base64; "-" is null, "=" is empty.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Oracle {
    static final long PATIENCE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        String line;
        while ((line = in.readLine()) != null) {
            String[] words = line.split(" ");
            try {
                switch (words[0]) {
                    case "partitions" -> out.println(partitions(words));
                    case "read" -> read(words, out);
                    default -> out.println("error: unknown request " + words[0]);
                }
            } catch (Exception e) {
                out.println("error: " + e);
            }
            out.flush();
        }
    }

    static String partitions(String[] words) {
        int count = Integer.parseInt(words[1]);
        return Arrays.stream(words, 2, words.length)
            .map(key -> "" + BuiltInPartitioner.partitionForKey(bytes(key), count))
            .collect(Collectors.joining(" "));
    }

    static void read(String[] words, PrintStream out) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", words[1]);
        settings.put("isolation.level", words[2]);
        settings.put("enable.auto.commit", false);
        settings.put("allow.auto.create.topics", false);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            Map<TopicPartition, Long> starts = new HashMap<>();
            for (String start : Arrays.asList(words).subList(4, words.length)) {
                String[] parts = start.split(":");
                starts.put(new TopicPartition(words[3], Integer.parseInt(parts[0])), Long.parseLong(parts[1]));
            }
            consumer.assign(starts.keySet());
            starts.forEach(consumer::seek);
            Map<TopicPartition, Long> ends = consumer.endOffsets(starts.keySet());
            long until = System.currentTimeMillis() + PATIENCE_MS;
            while (!ends.entrySet().stream().allMatch(e -> consumer.position(e.getKey()) >= e.getValue())) {
                if (System.currentTimeMillis() > until) {
                    throw new IllegalStateException("the end was not reached in time");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (record.offset() < ends.get(new TopicPartition(record.topic(), record.partition()))) {
                        out.println(text(record));
                    }
                }
            }
        }
        out.println(".");
    }

    static String text(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder line = new StringBuilder();
        line.append(record.partition()).append(' ').append(record.offset()).append(' ').append(record.timestamp());
        line.append(' ').append(base64(record.key())).append(' ').append(base64(record.value()));
        for (Header header : record.headers()) {
            line.append(' ').append(base64(header.key().getBytes(StandardCharsets.UTF_8)));
            line.append(' ').append(base64(header.value()));
        }
        return line.toString();
    }

    static String base64(byte[] bytes) {
        return bytes == null ? "-" : bytes.length == 0 ? "=" : Base64.getEncoder().encodeToString(bytes);
    }

    static byte[] bytes(String text) {
        return text.equals("-") ? null : text.equals("=") ? new byte[0] : Base64.getDecoder().decode(text);
    }
}
