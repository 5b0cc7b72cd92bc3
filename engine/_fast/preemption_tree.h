/* Building the preemption tree, keeping its bounds right as candidates leave, weighing it anew.

   Included once per instruction set: KB_NAME(x) gives each copy its own names. */

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
