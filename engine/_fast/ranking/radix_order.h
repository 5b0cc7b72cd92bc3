/* Stable ordering of rows by unsigned 64-bit keys: least significant digit first, digits that are the
   same in every key skipped. O(n) per digit that varies; keys count from the least, so that what is
   spread on both sides of a turned sign bit varies in no more digits than it is wide. */
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

/* Counters of 11 bits are 16 KiB, which stay in the fastest cache. To clear so many costs more than the passes
   that they save if there are fewer rows than counters. */
enum { KB_WIDE_DIGIT = 11, KB_NARROW_DIGIT = 8, KB_MANY_ROWS = 2048 };

/* Sorts `rows` in place, overwriting their keys; `spare` has the same size. */
static void kb_radix_sort(kb_keyed_row *rows, kb_keyed_row *spare, int64_t n) {
    const int width = n < KB_MANY_ROWS ? KB_NARROW_DIGIT : KB_WIDE_DIGIT, digits = 1 << width;
    int64_t counts[1 << KB_WIDE_DIGIT];
    kb_keyed_row *from = rows, *to = spare;
    uint64_t least = UINT64_MAX, differ = 0;
    int64_t i;
    int shift;
    for (i = 0; i < n; i++) least = rows[i].key < least ? rows[i].key : least;
    for (i = 0; i < n; i++) {
        rows[i].key -= least;
        differ |= rows[i].key;
    }
    for (shift = 0; shift < 64; shift += width) {
        const uint64_t mask = (uint64_t)digits - 1;
        int64_t sum = 0;
        int digit;
        if (!(differ >> shift & mask)) continue;
        memset(counts, 0, (size_t)digits * sizeof *counts);
        for (i = 0; i < n; i++) counts[from[i].key >> shift & mask]++;
        for (digit = 0; digit < digits; digit++) {
            const int64_t here = counts[digit];
            counts[digit] = sum;
            sum += here;
        }
        for (i = 0; i < n; i++) to[counts[from[i].key >> shift & mask]++] = from[i];
        {
            kb_keyed_row *swap = from;
            from = to;
            to = swap;
        }
    }
    /* After an odd number of passes, the result is in `spare`. */
    if (from != rows) memcpy(rows, from, (size_t)n * sizeof *rows);
}

#endif
