/* What is done for each record of Kafka's format (KIP-98; Kafka's DefaultRecord), in one pass.
 *
 * Writing: what batcher.py does with numpy and Arrow in several passes: gather a partition's rows, encode them, and lay keys,
 * values and headers side by side for the digest. That checks nothing: kernel_rows.py measures the rows first, and gives it
 * room enough. Reading, at the end of the file: what split.py does. That checks everything: its bytes come out of a log.
 *
 * Nothing is allocated. No CPU's own instructions are asked for, and no header of Python: one build is for all versions.
 */

#include <stdint.h>
#include <string.h>

/* Rows. */
#define AHEAD 6

/* Counted up with each change of a parameter; kernel.py refuses another one. */
int32_t kafka_eos_version(void) { return 2; }

/* An Arrow column of 32-bit offsets. lengths: of each entry, -1 for null. offsets NULL: all entries are null. */
struct column {
    const int32_t *offsets;
    const uint8_t *data;
    const int32_t *lengths;
};

static inline uint8_t *varint(uint8_t *at, uint64_t number) {
    if (number < 0x80) { /* most are this short, or the next */
        *at = (uint8_t)number;
        return at + 1;
    }
    if (number < 0x4000) {
        at[0] = (uint8_t)(number | 0x80);
        at[1] = (uint8_t)(number >> 7);
        return at + 2;
    }
    while (number >= 0x80) {
        *at++ = (uint8_t)(number | 0x80);
        number >>= 7;
    }
    *at++ = (uint8_t)number;
    return at;
}

static inline uint64_t zig_zag(int64_t number) { return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63); }

static inline int32_t size_of(uint64_t number) {
    int32_t size = 1 + (number >= 0x80) + (number >= 0x4000);
    for (number >>= 21; number; number >>= 7) size++;
    return size;
}

/* Short ones by two moves that overlap: a call of memcpy takes longer than its work. */
static inline uint8_t *copy(uint8_t *at, const uint8_t *from, int32_t size) {
    if (size > 32)
        memcpy(at, from, (size_t)size);
    else if (size >= 16) {
        memcpy(at, from, 16);
        memcpy(at + size - 16, from + size - 16, 16);
    } else if (size >= 8) {
        memcpy(at, from, 8);
        memcpy(at + size - 8, from + size - 8, 8);
    } else
        for (int32_t i = 0; i < size; i++) at[i] = from[i];
    return at + (size > 0 ? size : 0);
}

static inline int32_t length_of(const struct column *c, int64_t row) { return c->offsets ? c->lengths[row] : -1; }

/* One field with its length before it; its bytes go into the stream of all such fields, too, if there is one. */
static inline uint8_t *with_length(uint8_t *at, const struct column *c, int64_t row, int32_t length, uint8_t **stream) {
    at = varint(at, zig_zag(length));
    if (length > 0) {
        const uint8_t *from = c->data + c->offsets[row];
        if (*stream) *stream = copy(*stream, from, length);
        at = copy(at, from, length);
    }
    return at;
}

/* What the digest takes: room for the keys, the values and the header sections of the records, one after the other, and three
 * lengths for each record. Each pointer is moved to behind what was written. NULL: not wanted, for they lie so already. */
struct streams {
    uint8_t *keys;
    uint8_t *values;
    uint8_t *headers;
    int32_t *lengths;
};

/* Write `count` records of one batch, one after the other.
 *
 * rows: which rows, in their order; NULL: those from `first` on.
 * headers: each row's header section as it stands in a record; offsets NULL: no record has headers.
 * first_delta: offset delta of the first record.
 * timestamps: of the rows in their order, milliseconds; NULL: all are base_timestamp.
 * out: room for all that the records may take.
 * Returns the bytes written to out.
 */
int64_t kafka_eos_records(int64_t count, const int64_t *rows, int64_t first, const struct column *key,
                          const struct column *value, const struct column *headers, int32_t first_delta,
                          const int64_t *timestamps, int64_t base_timestamp, uint8_t *out, struct streams *streams) {
    uint8_t *at = out;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = rows ? rows[i] : first + i;
        if (rows && i + AHEAD < count) { /* the rows of one partition lie apart: the CPU does not guess where the next is */
            int64_t next = rows[i + AHEAD];
            if (key->offsets) __builtin_prefetch(key->data + key->offsets[next]);
            if (value->offsets)
                for (int32_t n = 0; n < value->lengths[next] && n < 512; n += 64)
                    __builtin_prefetch(value->data + value->offsets[next] + n);
        }
        uint64_t time = zig_zag(timestamps ? timestamps[i] - base_timestamp : 0);
        uint64_t delta = zig_zag((int64_t)first_delta + i);
        int32_t key_length = length_of(key, row), value_length = length_of(value, row);
        int32_t header_length = headers->offsets ? headers->lengths[row] : 1;
        int64_t body = 1 + size_of(time) + size_of(delta) + size_of(zig_zag(key_length)) +
                       (key_length > 0 ? key_length : 0) + size_of(zig_zag(value_length)) +
                       (value_length > 0 ? value_length : 0) + header_length;
        at = varint(at, zig_zag(body));
        *at++ = 0; /* attributes */
        at = varint(at, time);
        at = varint(at, delta);
        at = with_length(at, key, row, key_length, &streams->keys);
        at = with_length(at, value, row, value_length, &streams->values);
        if (headers->offsets) {
            const uint8_t *from = headers->data + headers->offsets[row];
            if (streams->headers) streams->headers = copy(streams->headers, from, header_length);
            at = copy(at, from, header_length);
        } else {
            *at++ = 0; /* no headers */
        }
        *streams->lengths++ = key_length;
        *streams->lengths++ = value_length;
        *streams->lengths++ = header_length;
    }
    return at - out;
}

/* The Java client's murmur2 (org.apache.kafka.common.utils.Utils) of each key; a null is hashed as an empty one. */
void kafka_eos_murmur2(int64_t count, const struct column *key, uint32_t *found) {
    const uint32_t m = 0x5bd1e995;
    for (int64_t row = 0; row < count; row++) {
        int32_t length = key->lengths[row] > 0 ? key->lengths[row] : 0;
        const uint8_t *data = key->data + key->offsets[row];
        uint32_t h = 0x9747b28c ^ (uint32_t)length;
        for (; length >= 4; length -= 4, data += 4) {
            uint32_t k = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
            k *= m;
            k ^= k >> 24;
            k *= m;
            h *= m;
            h ^= k;
        }
        switch (length) {
        case 3: h ^= (uint32_t)data[2] << 16; /* fall through */
        case 2: h ^= (uint32_t)data[1] << 8;  /* fall through */
        case 1:
            h ^= data[0];
            h *= m;
        }
        h ^= h >> 13;
        h *= m;
        found[row] = h ^ (h >> 15);
    }
}

/* -- reading -------------------------------------------------------------------------------------------------------- */

/* A zig-zag varint of at most so many bits. Returns the place behind it; NULL: there is none that ends before `end`. */
static inline const uint8_t *number(const uint8_t *at, const uint8_t *end, int bits, int64_t *found) {
    uint64_t all = 0;
    for (int shift = 0; shift < bits && at < end; shift += 7) {
        uint64_t byte = *at++, seven = byte & 0x7f;
        if (shift + 7 > bits && seven >> (bits - shift)) return NULL;
        all |= seven << shift;
        if (byte < 0x80) {
            *found = (int64_t)(all >> 1) ^ -(int64_t)(all & 1);
            return at;
        }
    }
    return NULL;
}

/* A length, -1 for null, and so many bytes. Returns the place behind them; NULL: they do not end before `end`. */
static inline const uint8_t *field(const uint8_t *at, const uint8_t *end, int64_t *length, const uint8_t **from) {
    at = number(at, end, 32, length);
    if (!at || *length < -1 || *length > end - at) return NULL;
    *from = at;
    return at + (*length > 0 ? *length : 0);
}

struct record {
    const uint8_t *key, *value, *headers;
    int64_t key_length, value_length, header_length;
};

/* One record. Returns the place behind it; NULL: it is none that ends before `end`. */
static inline const uint8_t *read_record(const uint8_t *at, const uint8_t *end, struct record *r) {
    int64_t size, ignored;
    at = number(at, end, 32, &size);
    if (!at || size < 1 || size > end - at) return NULL;
    end = at + size;
    at = number(at + 1, end, 64, &ignored); /* behind the attributes: the timestamp's delta */
    if (at) at = number(at, end, 32, &ignored); /* the offset's */
    if (at) at = field(at, end, &r->key_length, &r->key);
    if (at) at = field(at, end, &r->value_length, &r->value);
    if (!at) return NULL;
    r->headers = at;
    r->header_length = end - at;
    int64_t headers, length;
    const uint8_t *from;
    at = number(at, end, 32, &headers);
    if (!at || headers < 0) return NULL;
    for (; headers; headers--) {
        at = field(at, end, &length, &from);
        if (!at || length < 0) return NULL;
        at = field(at, end, &length, &from);
        if (!at) return NULL;
    }
    return at == end ? end : NULL;
}

/* Take a records section apart.
 *
 * lengths: room for three of each record: key, value, header section; -1 is null.
 * out: room of `size` bytes, for all keys, then all values, then all header sections; sizes: how many bytes each take.
 * Returns 0; or, where it is not `count` records which fill the section, -1 minus the number of the record (from 0 on)
 * that is malformed, or `count` where more is behind them. What is in lengths and out then means nothing.
 */
int64_t kafka_eos_split(const uint8_t *data, int64_t size, int64_t count, int32_t *lengths, uint8_t *out, int64_t *sizes) {
    const uint8_t *at = data, *end = data + size;
    int64_t keys = 0, values = 0, headers = 0;
    int32_t *next = lengths;
    struct record r;
    for (int64_t i = 0; i < count; i++) {
        at = read_record(at, end, &r);
        if (!at) return -1 - i;
        keys += r.key_length > 0 ? r.key_length : 0;
        values += r.value_length > 0 ? r.value_length : 0;
        headers += r.header_length;
        *next++ = (int32_t)r.key_length;
        *next++ = (int32_t)r.value_length;
        *next++ = (int32_t)r.header_length;
    }
    if (at != end) return -1 - count;
    sizes[0] = keys;
    sizes[1] = values;
    sizes[2] = headers;
    uint8_t *key = out, *value = out + keys, *header = value + values; /* all of them are parts of the section */
    at = data;
    for (int64_t i = 0; i < count; i++) {
        at = read_record(at, end, &r);
        key = copy(key, r.key, (int32_t)r.key_length);
        value = copy(value, r.value, (int32_t)r.value_length);
        header = copy(header, r.headers, (int32_t)r.header_length);
    }
    return 0;
}
