/* Reads header blocks in sequence with one connection's table: the first byte is the length of each block.
 * Fields that our writer encodes again must decode to the same fields. */
#include <stdlib.h>

#include "../http2/hpack.h"

#define ROOM 4096

static void written_is_read(const hpack_field *f) {
    static hpack h;
    static hpack_table table;
    static char scratch[2 * ROOM];
    static uint8_t out[2 * ROOM + HPACK_FIELD_OVERHEAD];
    size_t size = hpack_write(out, *f, f->name_len & 1), at;
    int verdict = HPACK_TAKEN;
    if (size > sizeof out) abort();
    hpack_reset(&h, &table, scratch, sizeof scratch);
    for (at = 0; at < size; at++) {
        if (verdict != HPACK_TAKEN) abort();
        verdict = hpack_byte(&h, out[at]);
    }
    if (verdict != HPACK_FIELD || !hpack_end_block(&h)) abort();
    if (h.field.name_len != f->name_len || memcmp(h.field.name, f->name, f->name_len) != 0) abort();
    if (h.field.value_len != f->value_len || memcmp(h.field.value, f->value, f->value_len) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static hpack h;
    static hpack_table table;
    static char scratch[ROOM];
    size_t at, block;
    if (n < 1) return 0;
    block = 1 + data[0];
    hpack_reset(&h, &table, scratch, sizeof scratch);
    for (at = 1; at < n; at++) {
        int verdict = hpack_byte(&h, data[at]);
        if (verdict == HPACK_REFUSED) return 0;
        if (h.table_size > HPACK_TABLE_SIZE || h.entries > HPACK_ENTRIES || h.kept > ROOM) abort();
        if (verdict == HPACK_FIELD) written_is_read(&h.field);
        if (at % block == 0 && !hpack_end_block(&h)) return 0;
    }
    return 0;
}
