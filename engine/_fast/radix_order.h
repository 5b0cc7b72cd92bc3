/* Stable ordering of rows by unsigned 64-bit keys: least significant byte first, bytes that are the
   same in every key skipped. O(n) per byte that varies. */
#ifndef KUBENGINE_RADIX_ORDER_H
#define KUBENGINE_RADIX_ORDER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t key;
    int32_t row;
    int32_t rest;
} kb_keyed_row;

/* Reorders `rows` in place; `spare` is as large. */
static void kb_radix_sort(kb_keyed_row *rows, kb_keyed_row *spare, int64_t n) {
    int64_t counts[8][256];
    kb_keyed_row *from = rows, *to = spare;
    uint64_t differ = 0;
    int64_t i;
    int byte;
    if (n < 2) return;
    for (i = 1; i < n; i++) differ |= rows[i].key ^ rows[0].key;
    for (byte = 0; byte < 8; byte++) {
        int64_t *count = counts[byte], sum = 0;
        const int shift = byte * 8;
        int b;
        if (!((differ >> shift) & 255)) continue;
        memset(count, 0, sizeof counts[byte]);
        for (i = 0; i < n; i++) count[(from[i].key >> shift) & 255]++;
        for (b = 0; b < 256; b++) {
            const int64_t here = count[b];
            count[b] = sum;
            sum += here;
        }
        for (i = 0; i < n; i++) to[count[(from[i].key >> shift) & 255]++] = from[i];
        {
            kb_keyed_row *swap = from;
            from = to;
            to = swap;
        }
    }
    if (from != rows) memcpy(rows, from, (size_t)n * sizeof *rows);
}

#endif
