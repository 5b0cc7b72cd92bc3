/* The greedy distance search of critical-pod preemption; the rule is in `_preemption_py.py`.

   Each round takes the candidate nearest to the remaining need. Few candidates are all compared. Among
   many, a *front* holds about a hundred of the nearest, chosen in one scan; the following rounds compare only
   the front, for as long as no other candidate can have overtaken it:

   Let u be the vector of shares that would remain after a candidate, its length the root of its distance. If
   every need has shrunk by at most the factor g since the front was chosen, then the vector is now at least
   g u - (g - 1) in each component, so its length at least g |u| - (g - 1) sqrt(k). With the least |u| outside
   the front that bounds all others at once (`kb_settled`).

   There may be more equal candidates than the front holds. Then it holds the best of them by the rule's further
   criteria; the others stay behind those, because a candidate only ever moves forward in the list. Estimates use
   reciprocals and a margin; the exact distance always decides, divided and summed in the order of the rule.

   Included once per instruction set, after `preemption_scan.h`. */

static void KB_NAME(kb_enter)(kb_pool *pool, const kb_columns *columns, const kb_remaining *left) {
    int a;
    int32_t i;
    for (a = 0; a < left->count; a++) {
        const int64_t *column = columns->column[left->slot[a]];
        const int64_t need = left->need[a];
        double *h = pool->h + (int64_t)left->slot[a] * pool->stride;
        for (i = 0; i < pool->n; i++) {
            const int64_t has = column ? column[pool->row[i]] : 1;
            h[i] = (double)(has < need ? has : need);
        }
        for (; i < kb_padded(pool->n); i++) h[i] = -INFINITY;
    }
}

/* Moves the last candidate to the place of the removed one. */
static void KB_NAME(kb_leave)(kb_pool *pool, const kb_remaining *left, int32_t entry) {
    const int32_t last = --pool->n;
    int a;
    for (a = 0; a < left->count; a++) {
        double *h = pool->h + (int64_t)left->slot[a] * pool->stride;
        h[entry] = h[last];
        h[last] = -INFINITY;
    }
    pool->row[entry] = pool->row[last];
    if (pool->position) pool->position[entry] = pool->position[last];
}

/* Whether two rows request the same amounts of all short resources, up to the need. */
static int KB_NAME(kb_same)(const kb_columns *columns, const kb_remaining *left, int32_t one, int32_t other) {
    int a;
    for (a = 0; a < left->count; a++) {
        const int64_t has = kb_amount(columns, left->slot[a], one);
        const int64_t also = kb_amount(columns, left->slot[a], other);
        if ((has < left->need[a] ? has : left->need[a]) != (also < left->need[a] ? also : left->need[a]))
            return 0;
    }
    return 1;
}

static kb_best KB_NAME(kb_tie_of)(const kb_columns *columns, int32_t row, int32_t position) {
    const kb_best tie = {0.0, columns->memory[row], columns->cpu[row], position, -1, row};
    return tie;
}

/* Keep the best `room` of equally near candidates in a heap with the worst on top. */
static void KB_NAME(kb_keep)(kb_best *heap, int32_t *size, int32_t room, kb_best one) {
    int32_t at = 0;
    if (*size < room) {
        for (at = (*size)++; at > 0 && kb_better(&heap[(at - 1) / 2], &one); at = (at - 1) / 2)
            heap[at] = heap[(at - 1) / 2];
    } else {
        if (!kb_better(&one, &heap[0])) return;
        for (;;) {
            int32_t below = 2 * at + 1;
            if (below >= room) break;
            if (below + 1 < room && kb_better(&heap[below], &heap[below + 1])) below++;
            if (!kb_better(&one, &heap[below])) break;
            heap[at] = heap[below];
            at = below;
        }
    }
    heap[at] = one;
}

/* Limits of the estimates between which the front ends (`kb_limits`). If near candidates are not next to each
   other, the minimum of each block is enough. */
static void KB_NAME(kb_front_limits)(const kb_pool *all, const kb_remaining *left, double nearest,
                                     double *low, double *high) {
    const int32_t blocks = kb_padded(all->n) / KB_BLOCK;
    int64_t count = 0;
    int32_t block;
    *low = nearest - 0.25 * left->margin;
    *high = (double)left->count + 1.0;
    if (blocks > KB_FRONT) {
        KB_NAME(kb_limits)(all->least, blocks, KB_FRONT / 2, KB_FRONT * 7 / 8, left->margin, low, high);
        for (block = 0; *low == *high && block < blocks && count <= KB_FRONT; block++)
            if (all->least[block] <= *high) count += __builtin_popcount(KB_NAME(kb_near)(all, block, *high));
        if (*low == *high && count <= KB_FRONT) return;
        *low = nearest - 0.25 * left->margin;
    }
    KB_NAME(kb_limits)(all->estimate, all->n, KB_FRONT / 2, KB_FRONT, left->margin, low, high);
}

static void KB_NAME(kb_choose_front)(kb_front *front, kb_pool *all, const kb_columns *columns,
                                     const kb_remaining *left, int64_t *touched) {
    kb_best ties[KB_FRONT / 2];
    double low, high;
    int32_t n = 0, kept = 0, equal = -1, block, i;
    int a, alike = 1;
    KB_NAME(kb_front_limits)(all, left, KB_NAME(kb_estimate)(all, left, touched), &low, &high);
    /* backwards: among equal candidates the later ones are better */
    for (block = kb_padded(all->n) / KB_BLOCK - 1; block >= 0; block--) {
        unsigned near;
        if (all->least[block] > high) continue;
        for (near = KB_NAME(kb_near)(all, block, high); near; near &= ~(1u << (31 - __builtin_clz(near)))) {
            const int32_t at = block * KB_BLOCK + 31 - __builtin_clz(near);
            const int32_t row = all->row[at];
            if (all->estimate[at] <= low) {
                front->pool.row[n] = row;
                front->pool.position[n++] = at;
            } else {
                alike = alike && (equal < 0 || KB_NAME(kb_same)(columns, left, equal, row));
                equal = row;
                KB_NAME(kb_keep)(ties, &kept, KB_FRONT / 2, KB_NAME(kb_tie_of)(columns, row, at));
            }
        }
    }
    front->tied = kept > 0 && alike;
    if (front->tied) front->edge = ties[0];
    for (i = 0; i < kept; i++) {
        front->pool.row[n] = ties[i].row;
        front->pool.position[n++] = ties[i].position;
    }
    front->pool.n = n;
    low = (alike ? KB_NAME(kb_next)(all->estimate, all->n, high) : low) - left->margin;
    front->outside = low > 0.0 ? sqrt(low) : 0.0;
    front->count = left->count;
    for (a = 0; a < left->count; a++) front->need[left->slot[a]] = (double)left->need[a];
    KB_NAME(kb_enter)(&front->pool, columns, left);
}

/* Whether the best candidate of the front is the best of all. */
static int KB_NAME(kb_settled)(kb_front *front, const kb_columns *columns, const kb_remaining *left,
                               const kb_best *best) {
    double growth = 1.0, reach;
    int a;
    if (front->count != left->count || best->entry < 0) return 0;
    for (a = 0; a < left->count; a++) {
        const double grown = front->need[left->slot[a]] * left->inverse[a];
        growth = grown > growth ? grown : growth;
    }
    if (growth > 2.0) return 0;
    reach = growth * front->outside - (growth - 1.0) * sqrt((double)left->count);
    if (reach <= 0.0 || best->distance + left->margin >= reach * reach) return 0;
    if (!front->tied) return 1;
    front->edge.distance = KB_NAME(kb_distance)(columns, left, front->edge.row);
    return !kb_better(&front->edge, best);
}

static void KB_NAME(kb_subtract)(kb_remaining *left, const kb_columns *columns, int32_t row) {
    int a, kept = 0;
    for (a = 0; a < left->count; a++) {
        const int64_t need = left->need[a] - kb_amount(columns, left->slot[a], row);
        if (need > 0) {
            left->slot[kept] = left->slot[a];
            left->need[kept] = need;
            left->inverse[kept++] = 1.0 / (double)need;
        }
    }
    left->count = kept;
    left->margin = KB_MARGIN_PER_NEED * (double)(kept + 1);
}

/* The nearest candidate according to the front, which is chosen again if it cannot decide. After a front that
   failed at once, some rounds scan all candidates, because choosing it cost more than it saved. */
static kb_best KB_NAME(kb_next_of_many)(kb_front *front, kb_pool *all, const kb_columns *columns,
                                        const kb_remaining *left, int64_t *touched) {
    kb_best best = {INFINITY, INT64_MAX, INT64_MAX, -1, -1, -1};
    if (front->count) {
        best = KB_NAME(kb_nearest)(&front->pool, columns, left, touched);
        if (KB_NAME(kb_settled)(front, columns, left, &best)) {
            front->served++;
            return best;
        }
        front->pause = front->served > 2 ? 1 : front->pause * 2;
        front->pause = front->pause > KB_LONGEST_PAUSE ? KB_LONGEST_PAUSE : front->pause;
        if (front->pause > 1) {
            front->rest = front->pause;
            front->count = 0;
            return KB_NAME(kb_nearest)(all, columns, left, touched);
        }
    }
    KB_NAME(kb_choose_front)(front, all, columns, left, touched);
    front->served = 0;
    best = KB_NAME(kb_nearest)(&front->pool, columns, left, touched);
    if (KB_NAME(kb_settled)(front, columns, left, &best)) return best;
    front->count = 0;
    return KB_NAME(kb_nearest)(all, columns, left, touched);
}

static void KB_NAME(kb_leave_front)(kb_front *front, const kb_pool *all, const kb_remaining *left,
                                    const kb_best *best) {
    int32_t *position = front->pool.position;
    int32_t i;
    KB_NAME(kb_leave)(&front->pool, left, best->entry);
    for (i = 0; i < front->pool.n; i++)
        position[i] = position[i] == all->n - 1 ? best->position : position[i];
}

/* Chooses victims among `rows` for the remaining need; returns their number. All rows together must be enough.
   Overwrites `rows`. */
static int32_t KB_NAME(kb_choose_one_by_one)(const kb_columns *columns, kb_remaining *left, int32_t *rows,
                                             int32_t n, int32_t *victims, kb_workspace *space) {
    int32_t front_rows[KB_FRONT], front_positions[KB_FRONT];
    char *at = space->arena;
    kb_pool all;
    kb_front front;
    kb_best best;
    int32_t chosen = 0;
    at = kb_pool_at(&all, at, rows, NULL, n, columns->needs);
    kb_pool_at(&front.pool, at, front_rows, front_positions, KB_FRONT, columns->needs);
    all.n = n;
    front.count = front.pool.n = 0;
    KB_NAME(kb_enter)(&all, columns, left);
    front.pause = 1;
    front.rest = KB_ROWS_BEFORE_A_FRONT / n + 1;
    while (left->count && all.n) {
        if (all.n > KB_WORTH_A_FRONT && front.rest-- <= 0) {
            best = KB_NAME(kb_next_of_many)(&front, &all, columns, left, &space->touched);
        } else {
            front.count = 0;
            best = KB_NAME(kb_nearest)(&all, columns, left, &space->touched);
        }
        if (front.count) KB_NAME(kb_leave_front)(&front, &all, left, &best);
        victims[chosen++] = best.row;
        KB_NAME(kb_leave)(&all, left, best.position);
        KB_NAME(kb_subtract)(left, columns, best.row);
    }
    return chosen;
}
