package bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;

/**
 * A process that runs one contestant again and again, as bench/host.py tells it: one line per command, a word and
 * then key=value, divided by tabs. Each is answered by one line that starts with "@". It ends with its input.
 */
final class Host {
    /** What is measured: all records written and committed. */
    interface Contestant {
        void run(Records records, Map<String, String> given) throws Exception;
    }

    private Host() {}

    static void serve(Contestant contestant) throws IOException {
        PrintStream out = System.out;
        System.setOut(System.err); // a library that prints must not answer for us
        Records records = null;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split("\t");
            Map<String, String> given = new LinkedHashMap<>();
            for (int i = 1; i < words.length; i++) {
                String[] pair = words[i].split("=", 2);
                given.put(pair[0], pair[1]);
            }
            String answer = "";
            try {
                switch (words[0]) {
                    case "load" -> {
                        records = null; // room for the next ones
                        records = Records.load(Path.of(given.get("file")));
                    }
                    case "settle" -> System.gc();
                    case "run" -> {
                        long begun = System.nanoTime();
                        contestant.run(records, given);
                        answer = "\tseconds=" + (System.nanoTime() - begun) / 1e9;
                    }
                    default -> throw new IllegalArgumentException("unknown command " + words[0]);
                }
            } catch (Exception e) {
                e.printStackTrace();
                answer = "\terror=" + e.toString().replaceAll("\\s", " ");
            }
            out.println("@" + answer);
            out.flush();
        }
        System.exit(0);
    }

    /** The producer's own settings: all that begin with "kafka.". */
    static Properties kafka(Map<String, String> given) {
        Properties found = new Properties();
        given.forEach((key, value) -> {
            if (key.startsWith("kafka.")) {
                found.setProperty(key.substring("kafka.".length()), value);
            }
        });
        return found;
    }
}
