/* Chooses victims where many candidates are equal. Candidates of one *kind* differ only in their place in the
   list, and the later one is better. So one distance is computed for each kind and round, and a heap of each
   kind's places gives the last candidate.

   The last candidate of the list moves to the place of a removed one. It is the top of its kind's heap, and only
   ever moves forward.

   Included once per instruction set, after `preemption_search.h`. */

/* The columns that distinguish kinds; returns their number. */
static int KB_NAME(kb_deciding)(const kb_columns *columns, const kb_remaining *left,
                                const int64_t **deciding) {
    const int64_t *asked[KB_MAX_NEEDS + 2];
    int count = 0, some = left->count, a, i;
    for (a = 0; a < left->count; a++) asked[a] = columns->column[left->slot[a]];
    asked[some++] = columns->memory;
    asked[some++] = columns->cpu;
    for (a = 0; a < some; a++) {
        for (i = 0; i < count && deciding[i] != asked[a]; i++);
        if (i == count && asked[a]) deciding[count++] = asked[a];
    }
    return count;
}

/* Determines the kind of each candidate; 0 if there are too many kinds. */
static int KB_NAME(kb_find_kinds)(kb_kinds *kinds, const kb_columns *columns, const kb_remaining *left,
                                  const int32_t *rows, int32_t n) {
    const int64_t *deciding[KB_MAX_NEEDS + 2];
    const int count = KB_NAME(kb_deciding)(columns, left, deciding);
    const int32_t some = n / 8 < 64 ? n / 8 : 64;
    int16_t table[4 * KB_KINDS];
    int32_t i;
    int a;
    memset(table, -1, sizeof table);
    kinds->pool.n = 0;
    for (i = 0; i < n; i++) {
        uint64_t hash = 0;
        int32_t at, kind;
        for (a = 0; a < count; a++) {
            hash = (hash ^ (uint64_t)deciding[a][rows[i]]) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 29;
        }
        for (at = (int32_t)(hash % (4 * KB_KINDS)); (kind = table[at]) >= 0; at = (at + 1) % (4 * KB_KINDS)) {
            for (a = 0; a < count && deciding[a][rows[i]] == deciding[a][kinds->pool.row[kind]]; a++);
            if (a == count) break;
        }
        if (kind < 0) {
            if (kinds->pool.n == KB_KINDS || kinds->pool.n > some + i / 4) return 0;
            kind = kinds->pool.n++;
            table[at] = (int16_t)kind;
            kinds->pool.row[kind] = rows[i];
            kinds->size[kind] = 0;
        }
        kinds->kind[i] = kind;
        kinds->size[kind]++;
    }
    return 1;
}

/* Fills the heaps and the pool. */
static void KB_NAME(kb_enter_kinds)(kb_kinds *kinds, const kb_columns *columns, const kb_remaining *left,
                                    const int32_t *rows, int32_t n) {
    int32_t filled[KB_KINDS], begin = 0, i;
    for (i = 0; i < kinds->pool.n; i++) {
        kinds->heap[i] = kinds->places + begin;
        begin += kinds->size[i];
        filled[i] = 0;
    }
    for (i = n - 1; i >= 0; i--) kinds->heap[kinds->kind[i]][filled[kinds->kind[i]]++] = i;
    for (i = 0; i < kinds->pool.n; i++) {
        kinds->pool.position[i] = kinds->heap[i][0];
        kinds->pool.row[i] = rows[kinds->heap[i][0]];
    }
    KB_NAME(kb_enter)(&kinds->pool, columns, left);
}

/* Replaces the top of a kind's heap by an earlier place. */
static void KB_NAME(kb_replace_top)(int32_t *heap, int32_t size, int32_t place) {
    int32_t at = 0;
    for (;;) {
        int32_t below = 2 * at + 1;
        if (below >= size) break;
        if (below + 1 < size && heap[below + 1] > heap[below]) below++;
        if (heap[below] < place) break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = place;
}

/* Removes the last of a kind from the list of `n`. */
static void KB_NAME(kb_leave_kinds)(kb_kinds *kinds, const kb_remaining *left, int32_t *rows, int32_t n,
                                    int32_t kind) {
    int32_t *heap = kinds->heap[kind];
    const int32_t place = heap[0], size = --kinds->size[kind];
    int a;
    if (size) {
        KB_NAME(kb_replace_top)(heap, size, heap[size]);
        kinds->pool.position[kind] = heap[0];
        kinds->pool.row[kind] = rows[heap[0]];
    } else {
        for (a = 0; a < left->count; a++)
            kinds->pool.h[(int64_t)left->slot[a] * kinds->pool.stride + kind] = -INFINITY;
    }
    if (place < n - 1) {
        const int32_t moved = kinds->kind[n - 1];
        rows[place] = rows[n - 1];
        kinds->kind[place] = moved;
        KB_NAME(kb_replace_top)(kinds->heap[moved], kinds->size[moved], place);
        kinds->pool.position[moved] = kinds->heap[moved][0];
        kinds->pool.row[moved] = rows[kinds->heap[moved][0]];
    }
}

/* As `kb_choose_one_by_one`, or -1 if there are too many kinds. */
static int32_t KB_NAME(kb_choose_by_kind)(const kb_columns *columns, kb_remaining *left, int32_t *rows,
                                          int32_t n, int32_t *victims, kb_workspace *space) {
    int32_t kind_rows[KB_KINDS], kind_positions[KB_KINDS], chosen = 0;
    kb_kinds kinds;
    char *after = kb_pool_at(&kinds.pool, space->arena, kind_rows, kind_positions, KB_KINDS, columns->needs);
    kinds.kind = (int32_t *)after;
    kinds.places = kinds.kind + n;
    if (!KB_NAME(kb_find_kinds)(&kinds, columns, left, rows, n)) return -1;
    KB_NAME(kb_enter_kinds)(&kinds, columns, left, rows, n);
    for (; left->count && n; n--) {
        const kb_best best = KB_NAME(kb_nearest)(&kinds.pool, columns, left, &space->touched);
        victims[chosen++] = best.row;
        KB_NAME(kb_leave_kinds)(&kinds, left, rows, n, best.entry);
        KB_NAME(kb_subtract)(left, columns, best.row);
    }
    return chosen;
}

/* Chooses victims among `rows` for `needs` (one per column, 0 if it is not short), as above. */
static int32_t KB_NAME(kb_choose)(const kb_columns *columns, const int64_t *needs, int32_t *rows, int32_t n,
                                  int32_t *victims, kb_workspace *space) {
    kb_remaining left;
    int32_t chosen = -1;
    int s;
    left.count = 0;
    for (s = 0; s < columns->needs; s++) {
        if (needs[s] > 0) {
            left.slot[left.count] = s;
            left.need[left.count] = needs[s];
            left.inverse[left.count++] = 1.0 / (double)needs[s];
        }
    }
    if (!left.count) return 0;
    left.margin = KB_MARGIN_PER_NEED * (double)(left.count + 1);
    if (n >= KB_WORTH_KINDS) chosen = KB_NAME(kb_choose_by_kind)(columns, &left, rows, n, victims, space);
    if (chosen < 0) chosen = KB_NAME(kb_choose_one_by_one)(columns, &left, rows, n, victims, space);
    return chosen;
}
