/* What the preemption search works on: a 16-ary tree over the candidates of one QoS class, kept in arrays
   that are carved from one block of memory. The layout and its bounds are explained in
   `preemption_search.h`. */
#ifndef KUBENGINE_PREEMPTION_TYPES_H
#define KUBENGINE_PREEMPTION_TYPES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "radix_order.h"

#define KB_FAN 16
#define KB_LEVELS 8
#define KB_MAX_NEEDS 32
/* 1 - h * (1/need) differs from (need - h)/need by less than 2^-50 whatever the sizes. */
#define KB_MARGIN_PER_NEED (1.0 / 70368744177664.0)
#define KB_EXACT_DOUBLE (1LL << 53)
#define KB_ROUNDS_BEFORE_SORTING 16
#define KB_WORK_BEFORE_WEIGHING 4 /* entries looked at per row; by then the bounds have lost their grip */

typedef double kb_four __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t kb_four_masks __attribute__((vector_size(32), aligned(8), may_alias));

typedef struct {
    int needs;                           /* how many resources are short */
    const int64_t *column[KB_MAX_NEEDS]; /* requests by row; NULL for `pods`, which is 1 everywhere */
    const int64_t *memory, *cpu;
} kb_columns;

typedef struct {
    int levels, width; /* width: resources that have a slot in `h` */
    int32_t length;    /* candidates left */
    int32_t at_first;  /* candidates when it was built */
    int exact;         /* every amount and need is exact as a double */
    double *h[KB_LEVELS];
    double *shares[KB_LEVELS]; /* sum over the needs of amount / need, as of the last weighing */
    double weight[KB_MAX_NEEDS];
    int64_t *memory[KB_LEVELS], *cpu[KB_LEVELS];
    int32_t *position[KB_LEVELS]; /* -1: nothing (left) here */
    int32_t *row, *slot_at;
} kb_tree;

typedef struct {
    int count;
    int slot[KB_MAX_NEEDS]; /* index into kb_columns, in the order of the requirements */
    int64_t need[KB_MAX_NEEDS];
    double inverse[KB_MAX_NEEDS];
    double margin;
    double growth, per_need; /* shares have grown at most so much since; 1 / count */
} kb_remaining;

typedef struct {
    double distance;
    int64_t memory, cpu;
    int32_t position, entry;
} kb_best;

typedef struct {
    void *arena;
    size_t bytes;
    int64_t touched; /* tree entries whose bound or distance was computed */
} kb_workspace;

static int64_t kb_amount(const kb_columns *columns, int need, int32_t row)
{
    return columns->column[need] ? columns->column[need][row] : 1;
}

static int kb_better(double distance, int64_t memory, int64_t cpu, int32_t position, const kb_best *best)
{
    if (distance != best->distance)
        return distance < best->distance;
    if (memory != best->memory)
        return memory < best->memory;
    if (cpu != best->cpu)
        return cpu < best->cpu;
    return position > best->position;
}

/* Entries per level for n rows, padded to whole nodes. */
static int kb_shape(int64_t n, int64_t *entries)
{
    int levels = 0;
    do {
        n = (n + KB_FAN - 1) / KB_FAN;
        entries[levels++] = n * KB_FAN;
    } while (n > 1);
    return levels;
}

static size_t kb_tree_bytes(int64_t n, int needs)
{
    int64_t entries[KB_LEVELS], all = 0;
    const int levels = kb_shape(n > 0 ? n : 1, entries);
    int level;
    for (level = 0; level < levels; level++)
        all += entries[level];
    return (size_t)all * ((size_t)needs * 8 + 28) + (size_t)entries[0] * 40 + 2048;
}

/* Memory for a search among n rows; 0 if there is none. */
static int kb_reserve(kb_workspace *space, size_t bytes)
{
    if (space->bytes >= bytes)
        return 1;
    free(space->arena);
    space->bytes = 0;
    space->arena = malloc(bytes);
    if (!space->arena)
        return 0;
    space->bytes = bytes;
    return 1;
}

static void *kb_carve(char **at, size_t bytes)
{
    void *here = *at;
    *at += (bytes + 31) & ~(size_t)31;
    return here;
}

/* What is left of `need` after `rows` are gone; amounts are not negative. */
static int64_t kb_left(const kb_columns *columns, int slot, int64_t need, const int32_t *rows, int32_t n)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        const int64_t has = kb_amount(columns, slot, rows[i]);
        if (has >= need)
            return 0;
        need -= has;
    }
    return need;
}

#endif
