package bench;

import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * The records that everybody writes, in memory. The file is made by bench/data.py: the number of records, then for
 * each record the length of its key and of its value (int32, big endian), key and value.
 */
final class Records {
    private final byte[] bytes;
    private final int[] starts;

    private Records(byte[] bytes, int[] starts) {
        this.bytes = bytes;
        this.starts = starts;
    }

    static Records load(Path file) throws IOException {
        int count;
        byte[] bytes;
        try (DataInputStream in = new DataInputStream(Files.newInputStream(file))) {
            count = in.readInt();
            bytes = new byte[Math.toIntExact(Files.size(file) - 4)];
            in.readFully(bytes);
        }
        ByteBuffer lengths = ByteBuffer.wrap(bytes);
        int[] starts = new int[count];
        int at = 0;
        for (int i = 0; i < count; i++) {
            starts[i] = at;
            at += 8 + lengths.getInt(at) + lengths.getInt(at + 4);
        }
        if (at != bytes.length) {
            throw new IOException(file + " has " + (bytes.length - at) + " bytes too many");
        }
        return new Records(bytes, starts);
    }

    int count() {
        return starts.length;
    }

    byte[] key(int i) {
        int from = starts[i] + 8;
        return Arrays.copyOfRange(bytes, from, from + length(starts[i]));
    }

    byte[] value(int i) {
        int from = starts[i] + 8 + length(starts[i]);
        return Arrays.copyOfRange(bytes, from, from + length(starts[i] + 4));
    }

    private int length(int at) {
        return (bytes[at] & 0xff) << 24 | (bytes[at + 1] & 0xff) << 16 | (bytes[at + 2] & 0xff) << 8 | (bytes[at + 3] & 0xff);
    }
}
