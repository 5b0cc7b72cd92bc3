/* Data of the preemption search: candidates of one QoS class as columns of doubles, and the amounts that are still
   short. The idea is explained in `preemption_search.h`. */
#ifndef KUBENGINE_PREEMPTION_TYPES_H
#define KUBENGINE_PREEMPTION_TYPES_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define KB_MAX_NEEDS 32
#define KB_BLOCK 16                  /* columns are padded to whole blocks */
#define KB_FRONT 256                 /* candidates in a front, at most */
#define KB_WORTH_A_FRONT 512         /* scanning fewer candidates is faster than choosing a front */
#define KB_ROWS_BEFORE_A_FRONT 16384 /* candidates scanned in rounds without a front */
#define KB_LONGEST_PAUSE 16
#define KB_ROUNDS_BEFORE_EQUALS 8
#define KB_KINDS 512      /* of equal candidates, at most */
#define KB_WORTH_KINDS 32 /* fewer candidates are compared one by one */
/* 1 - h * (1/need) differs from (need - h)/need by less than 2^-50 whatever the sizes. */
#define KB_MARGIN_PER_NEED (1.0 / 70368744177664.0)

typedef struct {
    int needs;                           /* the number of short resources */
    const int64_t *column[KB_MAX_NEEDS]; /* requests by row; NULL for `pods`, which is 1 everywhere */
    const int64_t *memory, *cpu;
} kb_columns;

typedef struct {
    int count;
    int slot[KB_MAX_NEEDS]; /* index into kb_columns, in the order of the requirements */
    int64_t need[KB_MAX_NEEDS];
    double inverse[KB_MAX_NEEDS];
    double margin; /* upper bound of the error of an estimated distance */
} kb_remaining;

/* `n` candidates: amounts at `h[slot * stride + i]`, minus infinity in the padding; estimated distances. */
typedef struct {
    int32_t n, stride;
    double *h, *estimate;
    double *least; /* of each block of estimates */
    int32_t *row;
    int32_t *position; /* place in the list of all candidates; NULL: `i` itself */
} kb_pool;

typedef struct {
    double distance;
    int64_t memory, cpu;
    int32_t position, entry, row;
} kb_best;

/* The nearest candidates, and a bound for all others (`kb_settled`). */
typedef struct {
    kb_pool pool;
    int count;                 /* the number of resources that were short then */
    double need[KB_MAX_NEEDS]; /* the amount of each, by slot */
    double outside;            /* the square root of a distance that the others exceeded */
    int tied;                  /* except those with the same requests as `edge` and a later place */
    kb_best edge;
    int served, pause,
        rest; /* rounds: decided by the front; to scan all after an immediate failure; left of those */
} kb_front;

/* Candidates by kind: equal but for their place in the list. */
typedef struct {
    kb_pool pool;            /* an entry for each kind: the last in the list */
    int32_t *kind;           /* by place */
    int32_t *places;         /* memory of the heaps */
    int32_t *heap[KB_KINDS]; /* places of each kind, the last on top */
    int32_t size[KB_KINDS];
} kb_kinds;

typedef struct {
    void *arena;
    size_t bytes;
    int64_t touched; /* distances estimated */
} kb_workspace;

static int64_t kb_amount(const kb_columns *columns, int slot, int32_t row) {
    return columns->column[slot] ? columns->column[slot][row] : 1;
}

static int kb_better(const kb_best *one, const kb_best *other) {
    if (one->distance != other->distance) return one->distance < other->distance;
    if (one->memory != other->memory) return one->memory < other->memory;
    if (one->cpu != other->cpu) return one->cpu < other->cpu;
    return one->position > other->position;
}

static int32_t kb_padded(int64_t n) { return (int32_t)((n + KB_BLOCK - 1) / KB_BLOCK * KB_BLOCK); }

/* Bytes of a pool of n candidates, without their rows. */
static size_t kb_pool_bytes(int64_t n, int needs) {
    return ((size_t)kb_padded(n) * (size_t)(needs + 1) + (size_t)kb_padded(kb_padded(n) / KB_BLOCK)) * 8;
}

/* Places a pool of `rows` at `at`; returns the end of its memory. */
static char *kb_pool_at(kb_pool *pool, char *at, int32_t *rows, int32_t *positions, int64_t n, int needs) {
    pool->stride = kb_padded(n);
    pool->h = (double *)at;
    pool->estimate = pool->h + (int64_t)needs * pool->stride;
    pool->least = pool->estimate + pool->stride;
    pool->row = rows;
    pool->position = positions;
    return at + kb_pool_bytes(n, needs);
}

static size_t kb_bytes_for(int64_t n, int needs) {
    const size_t one_by_one = kb_pool_bytes(n, needs) + kb_pool_bytes(KB_FRONT, needs);
    const size_t by_kind = kb_pool_bytes(KB_KINDS, needs) + 2 * (size_t)n * sizeof(int32_t);
    return one_by_one > by_kind ? one_by_one : by_kind;
}

/* Allocates memory for a search; returns 0 if there is none. */
static int kb_reserve(kb_workspace *space, size_t bytes) {
    if (space->bytes >= bytes) return 1;
    free(space->arena);
    space->bytes = 0;
    space->arena = malloc(bytes);
    if (!space->arena) return 0;
    space->bytes = bytes;
    return 1;
}

/* The rest of `need` after `rows` are removed; amounts are not negative. */
static int64_t kb_left(const kb_columns *columns, int slot, int64_t need, const int32_t *rows, int32_t n) {
    const int64_t *column = columns->column[slot];
    int32_t i;
    if (need <= 0) return 0;
    if (!column) return n >= need ? 0 : need - n;
    for (i = 0; i < n; i++) {
        const int64_t has = column[rows[i]];
        if (has >= need) return 0;
        need -= has;
    }
    return need;
}

#endif
