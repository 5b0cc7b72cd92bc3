/* The greedy distance search of critical-pod preemption; the rule is in `_preemption_py.py`.

   Candidates of one QoS class are the leaves of a 16-ary tree whose inner entries bound everything below
   them: the largest amount per short resource (so the smallest possible distance), the smallest memory and
   cpu request and the latest position (so the best possible tie), and the largest sum of shares of the needs
   that any one pod has: with k needs no distance is below (k - sum)^2 / k. A round descends only where the
   bound can still win, so most rows are never looked at. Bounds are computed with reciprocals and a margin;
   what decides is always the exact distance, divided and summed as the rule does.

   Included once per instruction set, after `preemption_tree.h`. */

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
