/* The greedy distance search of critical-pod preemption; the rule is in `_preemption_py.py`.

   Candidates of one QoS class are the leaves of a 16-ary tree whose inner entries bound everything below
   them: the largest amount per short resource (so the smallest possible distance), the smallest memory and
   cpu request and the latest position (so the best possible tie), and the largest sum of shares of the needs
   that any one pod has: with k needs no distance is below (k - sum)^2 / k. A round descends only where the bound
   can still win, so most rows are never looked at. Bounds are computed with reciprocals and a margin;
   what decides is always the exact distance, divided and summed as the rule does.

   This file is included once per instruction set: KB_NAME(x) gives each copy its own names. */

#define KB_FAN 16
#define KB_LEVELS 8
#define KB_MAX_NEEDS 32
/* 1 - h * (1/need) differs from (need - h)/need by less than 2^-50 whatever the sizes. */
#define KB_MARGIN_PER_NEED (1.0 / 70368744177664.0)
#define KB_EXACT_DOUBLE (1LL << 53)
#define KB_ROUNDS_BEFORE_SORTING 16
#define KB_WORK_BEFORE_WEIGHING 4 /* entries looked at per row; by then the bounds have lost their grip */

#ifndef KB_PREEMPTION_TYPES
#define KB_PREEMPTION_TYPES

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "radix_order.h"

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

static inline unsigned KB_NAME(kb_bits)(kb_four_masks mask)
{
#ifdef __AVX2__
    return (unsigned)__builtin_ia32_movmskpd256((kb_four)mask);
#else
    return (mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8);
#endif
}

/* Sums of squared remaining shares for the 16 entries of a node, by reciprocals, raised by `shares` where
   they say more (NULL: rows need no bound). Returns a bit for each that is at most `limit`. */
static inline unsigned KB_NAME(kb_bounds)(const double *h, const double *shares, const kb_remaining *left,
                                          double limit, double *sums)
{
    const kb_four zero = {0.0, 0.0, 0.0, 0.0};
    kb_four sum[4] = {zero, zero, zero, zero};
    unsigned bits = 0;
    int a, i;
    for (a = 0; a < left->count; a++) {
        const kb_four *has = (const kb_four *)(h + left->slot[a] * KB_FAN);
        const double inverse = left->inverse[a];
        for (i = 0; i < 4; i++) {
            kb_four rest = 1.0 - has[i] * inverse;
            rest = (kb_four)((kb_four_masks)rest & (rest > zero));
            sum[i] += rest * rest;
        }
    }
    for (i = 0; shares && i < 4; i++) {
        kb_four rest = (double)left->count - ((const kb_four *)shares)[i] * left->growth;
        kb_four_masks higher;
        rest = (kb_four)((kb_four_masks)rest & (rest > zero));
        rest = rest * rest * left->per_need;
        higher = rest > sum[i];
        sum[i] = (kb_four)(((kb_four_masks)rest & higher) | ((kb_four_masks)sum[i] & ~higher));
    }
    for (i = 0; i < 4; i++) {
        ((kb_four *)sums)[i] = sum[i];
        bits |= KB_NAME(kb_bits)(sum[i] <= limit) << (i * 4);
    }
    return bits;
}

static inline double KB_NAME(kb_distance)(const kb_columns *columns, const kb_remaining *left, int32_t row)
{
    double sum = 0.0;
    int a;
    for (a = 0; a < left->count; a++) {
        const double rest = (double)(left->need[a] - kb_amount(columns, left->slot[a], row));
        if (rest > 0.0) {
            const double share = rest / (double)left->need[a];
            sum += share * share;
        }
    }
    return sum;
}

/* The exact distance of an imaginary pod with an inner entry's largest amounts. */
static inline double KB_NAME(kb_box_distance)(const double *h, int entry, const kb_remaining *left)
{
    double sum = 0.0;
    int a;
    for (a = 0; a < left->count; a++) {
        const double need = (double)left->need[a];
        const double rest = need - h[left->slot[a] * KB_FAN + entry];
        if (rest > 0.0) {
            const double share = rest / need;
            sum += share * share;
        }
    }
    return sum;
}

static void KB_NAME(kb_search_rows)(const kb_tree *tree, const kb_columns *columns, const kb_remaining *left,
                                    int64_t node, kb_best *best)
{
    double sums[KB_FAN];
    const int64_t first = node * KB_FAN;
    unsigned bits = KB_NAME(kb_bounds)(tree->h[0] + first * tree->width, NULL, left,
                                       best->distance + left->margin, sums);
    for (; bits; bits &= ~(1u << (31 - __builtin_clz(bits)))) {
        const int i = 31 - __builtin_clz(bits);
        const int64_t entry = first + i;
        double distance;
        if (sums[i] > best->distance + left->margin || tree->position[0][entry] < 0)
            continue;
        distance = KB_NAME(kb_distance)(columns, left, tree->row[entry]);
        if (kb_better(distance, tree->memory[0][entry], tree->cpu[0][entry], tree->position[0][entry], best)) {
            best->distance = distance;
            best->memory = tree->memory[0][entry];
            best->cpu = tree->cpu[0][entry];
            best->position = tree->position[0][entry];
            best->entry = (int32_t)entry;
        }
    }
}

static void KB_NAME(kb_search)(const kb_tree *tree, const kb_columns *columns, const kb_remaining *left,
                               int level, int64_t node, kb_best *best, int64_t *touched)
{
    double sums[KB_FAN];
    const int64_t first = node * KB_FAN;
    const double *h = tree->h[level] + first * tree->width;
    unsigned bits;
    *touched += KB_FAN;
    if (level == 0) {
        KB_NAME(kb_search_rows)(tree, columns, left, node, best);
        return;
    }
    bits = KB_NAME(kb_bounds)(h, tree->shares[level] + first, left, best->distance + left->margin, sums);
    if (best->entry < 0) { /* the first descent: towards the nearest */
        unsigned rest = bits;
        int nearest = -1;
        for (; rest; rest &= rest - 1) {
            const int i = __builtin_ctz(rest);
            if (tree->position[level][first + i] >= 0 && (nearest < 0 || sums[i] < sums[nearest]))
                nearest = i;
        }
        if (nearest >= 0) {
            KB_NAME(kb_search)(tree, columns, left, level - 1, first + nearest, best, touched);
            bits &= ~(1u << nearest);
        }
    }
    /* Backwards: where amounts are larger, memory is smaller and positions are later. */
    for (; bits; bits &= ~(1u << (31 - __builtin_clz(bits)))) {
        const int i = 31 - __builtin_clz(bits);
        const int64_t entry = first + i;
        if (sums[i] > best->distance + left->margin || tree->position[level][entry] < 0)
            continue;
        if (tree->exact && sums[i] + left->margin >= best->distance &&
            !kb_better(KB_NAME(kb_box_distance)(h, i, left), tree->memory[level][entry],
                       tree->cpu[level][entry], tree->position[level][entry], best))
            continue;
        if (level == 1) {
            *touched += KB_FAN;
            KB_NAME(kb_search_rows)(tree, columns, left, entry, best);
        } else {
            KB_NAME(kb_search)(tree, columns, left, level - 1, entry, best, touched);
        }
    }
}

/* The largest of a node's 16 amounts, and the smallest of its 16 tie-breakers. */
static inline double KB_NAME(kb_largest)(const double *amounts)
{
    const kb_four *a = (const kb_four *)amounts;
    kb_four best = a[0];
    double largest;
    int i;
    for (i = 1; i < 4; i++) {
        const kb_four_masks higher = a[i] > best;
        best = (kb_four)(((kb_four_masks)a[i] & higher) | ((kb_four_masks)best & ~higher));
    }
    largest = best[0];
    for (i = 1; i < 4; i++)
        largest = best[i] > largest ? best[i] : largest;
    return largest;
}

static inline int64_t KB_NAME(kb_smallest)(const int64_t *amounts)
{
    const kb_four_masks *a = (const kb_four_masks *)amounts;
    kb_four_masks best = a[0];
    int64_t smallest;
    int i;
    for (i = 1; i < 4; i++) {
        const kb_four_masks lower = a[i] < best;
        best = (a[i] & lower) | (best & ~lower);
    }
    smallest = best[0];
    for (i = 1; i < 4; i++)
        smallest = best[i] < smallest ? best[i] : smallest;
    return smallest;
}

/* Entry `node` of level + 1 from the 16 entries of node `node` of `level`. Returns whether it changed. */
static int KB_NAME(kb_summarise)(kb_tree *tree, int level, int64_t node)
{
    const int64_t first = node * KB_FAN;
    const int64_t above = node / KB_FAN * KB_FAN;
    const int spot = (int)(node % KB_FAN);
    const double *h = tree->h[level] + first * tree->width;
    double *up = tree->h[level + 1] + above * tree->width + spot;
    const double most = KB_NAME(kb_largest)(tree->shares[level] + first);
    int64_t memory, cpu;
    int32_t position = -1;
    int i, s, changed = tree->shares[level + 1][node] != most;
    tree->shares[level + 1][node] = most;
    for (s = 0; s < tree->width; s++) {
        const double largest = KB_NAME(kb_largest)(h + s * KB_FAN);
        changed |= up[s * KB_FAN] != largest;
        up[s * KB_FAN] = largest;
    }
    memory = KB_NAME(kb_smallest)(tree->memory[level] + first);
    cpu = KB_NAME(kb_smallest)(tree->cpu[level] + first);
    for (i = 0; i < KB_FAN; i++) {
        const int32_t p = tree->position[level][first + i];
        position = p > position ? p : position;
    }
    changed |= tree->memory[level + 1][node] != memory || tree->cpu[level + 1][node] != cpu ||
               tree->position[level + 1][node] != position;
    tree->memory[level + 1][node] = memory;
    tree->cpu[level + 1][node] = cpu;
    tree->position[level + 1][node] = position;
    return changed;
}

static void KB_NAME(kb_refresh)(kb_tree *tree, int64_t entry)
{
    int level;
    for (level = 0; level + 1 < tree->levels; level++) {
        entry /= KB_FAN;
        if (!KB_NAME(kb_summarise)(tree, level, entry))
            return;
    }
}

/* Weigh every row by what is needed now. */
static void KB_NAME(kb_weigh)(kb_tree *tree, kb_remaining *left)
{
    const int64_t nodes = ((int64_t)tree->at_first + KB_FAN - 1) / KB_FAN;
    int64_t node, entries = nodes;
    int a, i, level;
    for (a = 0; a < left->count; a++)
        tree->weight[left->slot[a]] = left->inverse[a];
    left->growth = 1.0;
    for (node = 0; node < nodes; node++) {
        double *shares = tree->shares[0] + node * KB_FAN;
        for (i = 0; i < KB_FAN; i++)
            shares[i] = 0.0;
        for (a = 0; a < left->count; a++) {
            const double *h = tree->h[0] + (node * tree->width + left->slot[a]) * KB_FAN;
            for (i = 0; i < KB_FAN; i++)
                shares[i] += h[i] * left->inverse[a];
        }
    }
    for (level = 0; level + 1 < tree->levels; level++) {
        for (node = 0; node < entries; node++)
            tree->shares[level + 1][node] = KB_NAME(kb_largest)(tree->shares[level] + node * KB_FAN);
        entries = (entries + KB_FAN - 1) / KB_FAN;
    }
}

/* Neighbours in the tree should be alike: by the sum of shares, roughly, then interleave the leading bits of
   the amounts that differ, then memory, small last. Any order is correct; this one lets bounds prune. */
static void KB_NAME(kb_sort_alike)(const kb_columns *columns, const kb_remaining *left,
                                   const int32_t *rows, int32_t n, kb_keyed_row *keyed, kb_keyed_row *spare)
{
    uint64_t spread[256];
    double scale[KB_MAX_NEEDS], memory_scale;
    int64_t largest_memory = 0;
    int which[KB_MAX_NEEDS], varied = 0, bits, a, b;
    int32_t i;
    for (a = 0; a < left->count && varied < 4; a++) {
        const int64_t *column = columns->column[left->slot[a]];
        int64_t low = INT64_MAX, high = 0;
        if (!column)
            continue;
        for (i = 0; i < n; i++) {
            const int64_t has = column[rows[i]];
            low = has < low ? has : low;
            high = has > high ? has : high;
        }
        high = high < left->need[a] ? high : left->need[a];
        if (high <= low)
            continue;
        which[varied] = left->slot[a];
        scale[varied++] = 1.0 / (double)high;
    }
    bits = varied ? (16 / varied < 8 ? 16 / varied : 8) : 0;
    for (i = 0; i < 256; i++) {
        spread[i] = 0;
        for (b = 0; b < bits; b++)
            spread[i] |= (uint64_t)((i >> b) & 1) << (b * varied);
    }
    for (i = 0; i < n; i++)
        largest_memory = columns->memory[rows[i]] > largest_memory ? columns->memory[rows[i]] : largest_memory;
    memory_scale = 1.0 / ((double)largest_memory + 1.0);
    for (i = 0; i < n; i++) {
        uint64_t key = 0;
        double total = 0.0;
        for (a = 0; a < varied; a++) {
            double share = (double)columns->column[which[a]][rows[i]] * scale[a];
            share = share < 1.0 ? share : 1.0;
            total += share;
            key |= spread[(int)(share * (double)((1 << bits) - 1))] << a;
        }
        key |= varied ? (uint64_t)(total / varied * 15.0) << 16 : 0;
        key = key << 16 | (65535 - (uint64_t)((double)columns->memory[rows[i]] * memory_scale * 65535.0));
        keyed[i].key = key;
        keyed[i].row = rows[i];
        keyed[i].rest = i;
    }
    kb_radix_sort(keyed, spare, n);
}

static void KB_NAME(kb_build)(kb_tree *tree, const kb_columns *columns, const kb_remaining *left,
                              const int32_t *rows, int32_t n, int sorted, kb_workspace *space)
{
    int64_t entries[KB_LEVELS], node;
    char *at = space->arena;
    kb_keyed_row *keyed, *spare;
    int level, s, a;
    int32_t i;
    tree->levels = kb_shape(n, entries);
    tree->width = columns->needs;
    tree->length = tree->at_first = n;
    tree->exact = 1;
    for (level = 0; level < tree->levels; level++) {
        tree->h[level] = kb_carve(&at, (size_t)entries[level] * (size_t)tree->width * 8);
        tree->shares[level] = kb_carve(&at, (size_t)entries[level] * 8);
        memset(tree->shares[level], 0, (size_t)entries[level] * 8);
        tree->memory[level] = kb_carve(&at, (size_t)entries[level] * 8);
        tree->cpu[level] = kb_carve(&at, (size_t)entries[level] * 8);
        tree->position[level] = kb_carve(&at, (size_t)entries[level] * 4);
    }
    tree->row = kb_carve(&at, (size_t)entries[0] * 4);
    tree->slot_at = kb_carve(&at, (size_t)entries[0] * 4);
    keyed = kb_carve(&at, (size_t)n * sizeof *keyed);
    spare = kb_carve(&at, (size_t)n * sizeof *spare);
    if (sorted) {
        KB_NAME(kb_sort_alike)(columns, left, rows, n, keyed, spare);
        for (i = 0; i < n; i++) {
            tree->row[i] = keyed[i].row;
            tree->position[0][i] = keyed[i].rest;
            tree->slot_at[keyed[i].rest] = i;
        }
    } else {
        memcpy(tree->row, rows, (size_t)n * sizeof *rows);
        for (i = 0; i < n; i++)
            tree->position[0][i] = tree->slot_at[i] = i;
    }
    for (i = 0; i < n; i++)
        tree->memory[0][i] = columns->memory[tree->row[i]];
    for (i = 0; i < n; i++)
        tree->cpu[0][i] = columns->cpu[tree->row[i]];
    for (i = n; i < entries[0]; i++) {
        tree->row[i] = tree->position[0][i] = -1;
        tree->memory[0][i] = tree->cpu[0][i] = INT64_MAX;
    }
    for (s = 0; s < tree->width; s++) {
        const int64_t *column = columns->column[s];
        int64_t cap = 0;
        for (a = 0; a < left->count; a++)
            cap = left->slot[a] == s ? left->need[a] : cap;
        tree->exact &= cap < KB_EXACT_DOUBLE;
        for (node = 0; node < entries[0] / KB_FAN; node++) {
            double *h = tree->h[0] + (node * tree->width + s) * KB_FAN;
            const int32_t *row = tree->row + node * KB_FAN;
            const int real = n - node * KB_FAN < KB_FAN ? (int)(n - node * KB_FAN) : KB_FAN;
            for (i = 0; i < real; i++) {
                const int64_t has = column ? column[row[i]] : 1;
                h[i] = (double)(has < cap ? has : cap);
            }
            for (; i < KB_FAN; i++)
                h[i] = 0.0;
        }
    }
    for (level = 0; level + 1 < tree->levels; level++) {
        memset(tree->h[level + 1], 0, (size_t)entries[level + 1] * (size_t)tree->width * 8);
        for (node = 0; node < entries[level + 1]; node++) {
            tree->position[level + 1][node] = -1;
            tree->memory[level + 1][node] = tree->cpu[level + 1][node] = INT64_MAX;
        }
        for (node = 0; node < entries[level] / KB_FAN; node++)
            KB_NAME(kb_summarise)(tree, level, node);
    }
}

/* Take an entry out; the last of the list moves to its position. */
static void KB_NAME(kb_remove)(kb_tree *tree, int32_t entry)
{
    const int32_t position = tree->position[0][entry];
    const int32_t last = tree->slot_at[--tree->length];
    double *h = tree->h[0] + (int64_t)(entry / KB_FAN) * tree->width * KB_FAN + entry % KB_FAN;
    int s;
    tree->position[0][last] = position;
    tree->slot_at[position] = last;
    tree->position[0][entry] = -1;
    tree->shares[0][entry] = 0.0;
    tree->memory[0][entry] = tree->cpu[0][entry] = INT64_MAX;
    for (s = 0; s < tree->width; s++)
        h[s * KB_FAN] = 0.0;
    KB_NAME(kb_refresh)(tree, entry);
    if (last != entry)
        KB_NAME(kb_refresh)(tree, last);
}

static void KB_NAME(kb_subtract)(kb_remaining *left, const kb_tree *tree, const kb_columns *columns, int32_t row)
{
    int a, kept = 0;
    left->growth = 0.0;
    for (a = 0; a < left->count; a++) {
        const int64_t need = left->need[a] - kb_amount(columns, left->slot[a], row);
        if (need > 0) {
            left->slot[kept] = left->slot[a];
            left->need[kept] = need;
            left->inverse[kept] = 1.0 / (double)need;
            if (left->inverse[kept] > left->growth * tree->weight[left->slot[kept]])
                left->growth = left->inverse[kept] / tree->weight[left->slot[kept]];
            kept++;
        }
    }
    left->count = kept;
    left->per_need = 1.0 / (double)(kept ? kept : 1);
    left->margin = KB_MARGIN_PER_NEED * (double)(kept + 1);
}

/* How many rounds it takes at least. */
static double KB_NAME(kb_fewest_rounds)(const kb_tree *tree, const kb_remaining *left)
{
    const int top = tree->levels - 1;
    double rounds = 0.0;
    int a;
    for (a = 0; a < left->count; a++) {
        const double largest = KB_NAME(kb_largest)(tree->h[top] + left->slot[a] * KB_FAN);
        const double share = (double)left->need[a] / (largest + 1.0);
        rounds = share > rounds ? share : rounds;
    }
    return rounds;
}

/* Victims among `rows` for `needs` (one per column, 0 where nothing is short); how many. The caller has
   made sure that all rows together are enough. `rows` is overwritten. */
static int32_t KB_NAME(kb_choose)(const kb_columns *columns, const int64_t *needs, int32_t *rows, int32_t n,
                                  int32_t *victims, kb_workspace *space)
{
    kb_tree tree;
    kb_remaining left;
    kb_best best;
    int32_t chosen = 0, seed = -1, i;
    int64_t weighed;
    int s, sorted = 0, rounds;
    left.count = 0;
    for (s = 0; s < columns->needs; s++) {
        if (needs[s] > 0) {
            left.slot[left.count] = s;
            left.need[left.count] = needs[s];
            left.inverse[left.count++] = 1.0 / (double)needs[s];
        }
    }
    left.margin = KB_MARGIN_PER_NEED * (double)(left.count + 1);
    while (left.count && n > 0) {
        KB_NAME(kb_build)(&tree, columns, &left, rows, n, sorted, space);
        if (!sorted && n > KB_FAN * KB_FAN &&
            KB_NAME(kb_fewest_rounds)(&tree, &left) > KB_ROUNDS_BEFORE_SORTING) {
            sorted = 1;
            continue;
        }
        seed = -1;
        left.per_need = 1.0 / (double)left.count;
        KB_NAME(kb_weigh)(&tree, &left);
        weighed = space->touched;
        for (rounds = 0; left.count && tree.length; rounds++) {
            if (!sorted && n > KB_FAN * KB_FAN && rounds == KB_ROUNDS_BEFORE_SORTING)
                break;
            if (space->touched - weighed > KB_WORK_BEFORE_WEIGHING * (int64_t)n) {
                KB_NAME(kb_weigh)(&tree, &left);
                weighed = space->touched;
            }
            best.distance = (double)left.count + 1.0;
            best.memory = best.cpu = INT64_MAX;
            best.position = best.entry = -1;
            if (seed >= 0)
                KB_NAME(kb_search)(&tree, columns, &left, 0, seed / KB_FAN, &best, &space->touched);
            KB_NAME(kb_search)(&tree, columns, &left, tree.levels - 1, 0, &best, &space->touched);
            seed = best.entry;
            victims[chosen++] = tree.row[seed];
            KB_NAME(kb_subtract)(&left, &tree, columns, tree.row[seed]);
            KB_NAME(kb_remove)(&tree, seed);
        }
        if (!left.count)
            break;
        n = tree.length;
        for (i = 0; i < n; i++)
            rows[i] = tree.row[tree.slot_at[i]];
        sorted = 1;
    }
    return chosen;
}
