/* Distances of many candidates at once. Included once per instruction set: KB_NAME(x) gives each copy its own
   names, KB_LANES is how many doubles go into a register. */

typedef double KB_NAME(kb_some) __attribute__((vector_size(KB_LANES * 8), aligned(8), may_alias));
typedef int64_t KB_NAME(kb_masks) __attribute__((vector_size(KB_LANES * 8), aligned(8), may_alias));

static inline KB_NAME(kb_some) KB_NAME(kb_lesser)(KB_NAME(kb_some) a, KB_NAME(kb_some) b) {
    const KB_NAME(kb_masks) lower = a < b;
    return (KB_NAME(kb_some))(((KB_NAME(kb_masks))a & lower) | ((KB_NAME(kb_masks))b & ~lower));
}

static inline double KB_NAME(kb_least)(KB_NAME(kb_some) a) {
    double least = a[0];
    int i;
    for (i = 1; i < KB_LANES; i++) least = a[i] < least ? a[i] : least;
    return least;
}

static inline unsigned KB_NAME(kb_bits)(KB_NAME(kb_masks) mask) {
#if KB_LANES == 8
    return __builtin_ia32_cvtq2mask512((long long __attribute__((vector_size(64))))mask);
#elif KB_LANES == 4
    return (unsigned)__builtin_ia32_movmskpd256((double __attribute__((vector_size(32))))mask);
#else
    return (unsigned)((mask[0] & 1) | (mask[1] & 2));
#endif
}

/* Estimates every distance, by reciprocals; returns the least. */
static double KB_NAME(kb_estimate)(kb_pool *pool, const kb_remaining *left, int64_t *touched) {
    enum { PARTS = KB_BLOCK / KB_LANES };
    const KB_NAME(kb_some) zero = {0.0};
    double nearest = INFINITY;
    int32_t first;
    int a, i;
    for (first = 0; first < pool->n; first += KB_BLOCK) {
        KB_NAME(kb_some) sum[PARTS];
        for (i = 0; i < PARTS; i++) sum[i] = zero;
        for (a = 0; a < left->count; a++) {
            const KB_NAME(kb_some) *has =
                (const KB_NAME(kb_some) *)(pool->h + (int64_t)left->slot[a] * pool->stride + first);
            const double inverse = left->inverse[a];
            for (i = 0; i < PARTS; i++) {
                KB_NAME(kb_some) rest = 1.0 - has[i] * inverse;
                rest = (KB_NAME(kb_some))((KB_NAME(kb_masks))rest & (rest > zero));
                sum[i] += rest * rest;
            }
        }
        for (i = 0; i < PARTS; i++) ((KB_NAME(kb_some) *)(pool->estimate + first))[i] = sum[i];
        for (i = PARTS / 2; i; i /= 2)
            for (a = 0; a < i; a++) sum[a] = KB_NAME(kb_lesser)(sum[a], sum[a + i]);
        pool->least[first / KB_BLOCK] = KB_NAME(kb_least)(sum[0]);
        nearest = pool->least[first / KB_BLOCK] < nearest ? pool->least[first / KB_BLOCK] : nearest;
    }
    for (i = kb_padded(pool->n) / KB_BLOCK; i % KB_BLOCK; i++) pool->least[i] = INFINITY;
    *touched += pool->n;
    return nearest;
}

/* Values above the limit, the others infinite. */
static inline KB_NAME(kb_some) KB_NAME(kb_above)(KB_NAME(kb_some) values, double limit) {
    const KB_NAME(kb_some) infinite = {0.0};
    const KB_NAME(kb_masks) within = values <= limit;
    return (KB_NAME(kb_some))(((KB_NAME(kb_masks))values & ~within) |
                              ((KB_NAME(kb_masks))(infinite + INFINITY) & within));
}

/* The least value above `limit`; the padding is infinite. */
static double KB_NAME(kb_next)(const double *values, int32_t n, double limit) {
    KB_NAME(kb_some) next = {0.0};
    int32_t i;
    next += INFINITY;
    for (i = 0; i < n; i += KB_LANES)
        next = KB_NAME(kb_lesser)(KB_NAME(kb_above)(*(const KB_NAME(kb_some) *)(values + i), limit), next);
    return KB_NAME(kb_least)(next);
}

/* Bits for the estimates of a block that are at most `limit`. */
static inline unsigned KB_NAME(kb_near)(const kb_pool *pool, int32_t block, double limit) {
    const KB_NAME(kb_some) *estimate = (const KB_NAME(kb_some) *)(pool->estimate + block * KB_BLOCK);
    unsigned near = 0;
    int i;
    for (i = 0; i < KB_BLOCK / KB_LANES; i++)
        near |= KB_NAME(kb_bits)(estimate[i] <= limit) << (i * KB_LANES);
    return near;
}

/* The number of `values` that are at most `limit`. */
static int64_t KB_NAME(kb_count)(const double *values, int32_t n, double limit) {
    int64_t count = 0;
    int32_t i;
    for (i = 0; i < n; i++) count += values[i] <= limit;
    return count;
}

/* Two limits: at most `low` are fewer than `few` values, at most `high` more than `many`; the same limit twice
   if one was found in between, otherwise they are less than `margin` apart. */
static void KB_NAME(kb_limits)(const double *values, int32_t n, int64_t few, int64_t many, double margin,
                               double *low, double *high) {
    double middle = *low + 0.5 * margin;
    int round;
    for (round = 0; *high - *low > margin; round++) {
        const int64_t count = KB_NAME(kb_count)(values, n, middle);
        if (count < few) {
            *low = middle;
        } else {
            *high = middle;
            if (count <= many) *low = middle;
        }
        middle = (*low + *high) * 0.5;
        if (round > KB_ROUNDS_BEFORE_EQUALS && round % 2) { /* many equal values? */
            const double next = KB_NAME(kb_next)(values, n, *low);
            *low = next - 0.25 * margin > *low ? next - 0.25 * margin : *low;
            middle = next + 0.25 * margin;
        }
    }
}

/* The exact distance: (need - has) / need, squared, summed in order. */
static inline double KB_NAME(kb_distance)(const kb_columns *columns, const kb_remaining *left, int32_t row) {
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

/* The pool's nearest candidate; exact distances decide where estimates are too close. */
static kb_best KB_NAME(kb_nearest)(kb_pool *pool, const kb_columns *columns, const kb_remaining *left,
                                   int64_t *touched) {
    const double limit = KB_NAME(kb_estimate)(pool, left, touched) + 2.0 * left->margin;
    kb_best best = {INFINITY, INT64_MAX, INT64_MAX, -1, -1, -1};
    int32_t first;
    for (first = 0; first < pool->n; first += KB_BLOCK) {
        unsigned near;
        if (pool->least[first / KB_BLOCK] > limit) continue;
        for (near = KB_NAME(kb_near)(pool, first / KB_BLOCK, limit); near; near &= near - 1) {
            const int32_t entry = first + __builtin_ctz(near);
            const int32_t row = pool->row[entry];
            const kb_best one = {KB_NAME(kb_distance)(columns, left, row),
                                 columns->memory[row],
                                 columns->cpu[row],
                                 pool->position ? pool->position[entry] : entry,
                                 entry,
                                 row};
            if (kb_better(&one, &best)) best = one;
        }
    }
    return best;
}
