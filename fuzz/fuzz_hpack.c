/* Header blocks one after another on one connection's table: the first byte is the length of each block. */
#include <stdlib.h>

#include "hpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static hpack h;
    size_t at, block;
    if (n < 1) return 0;
    block = 1 + data[0];
    hpack_reset(&h);
    for (at = 1; at < n; at++) {
        if (!hpack_byte(&h, data[at])) return 0;
        if (h.table_size > HPACK_TABLE_SIZE || h.entries > HPACK_ENTRIES) abort();
        if (at % block == 0 && !hpack_end_block(&h)) return 0;
    }
    return 0;
}
