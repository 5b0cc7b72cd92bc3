/* Sums over the lattice of node sets: an array of 2^nodes numbers indexed by mask. */
#ifndef KUBENGINE_SUBSET_SUMS_H
#define KUBENGINE_SUBSET_SUMS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__)
#define KB_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define KB_WIDE
#endif

/* How many numbers stay in the fastest cache during a pass over all low nodes. */
#define KB_BLOCK ((size_t)2048) /* of 8 bytes: 16 KiB */

/* Updates every pair of entries (without a node, with it), one node after the other. The low nodes go block by
   block, and the lowest three without an inner loop, which would be shorter than its own cost. */
#define KB_EACH_PAIR(f, nodes, UPDATE)                                                                       \
    do {                                                                                                     \
        size_t size_ = (size_t)1 << (nodes), block_ = size_ < KB_BLOCK ? size_ : KB_BLOCK;                   \
        size_t first_ = size_ < 8 ? 1 : 8;                                                                   \
        for (size_t start_ = 0; start_ < size_; start_ += block_) {                                          \
            for (size_t i_ = start_; first_ == 8 && i_ < start_ + block_; i_ += 8) {                         \
                UPDATE(f[i_], f[i_ + 1]);                                                                    \
                UPDATE(f[i_ + 2], f[i_ + 3]);                                                                \
                UPDATE(f[i_ + 4], f[i_ + 5]);                                                                \
                UPDATE(f[i_ + 6], f[i_ + 7]);                                                                \
                UPDATE(f[i_], f[i_ + 2]);                                                                    \
                UPDATE(f[i_ + 1], f[i_ + 3]);                                                                \
                UPDATE(f[i_ + 4], f[i_ + 6]);                                                                \
                UPDATE(f[i_ + 5], f[i_ + 7]);                                                                \
                UPDATE(f[i_], f[i_ + 4]);                                                                    \
                UPDATE(f[i_ + 1], f[i_ + 5]);                                                                \
                UPDATE(f[i_ + 2], f[i_ + 6]);                                                                \
                UPDATE(f[i_ + 3], f[i_ + 7]);                                                                \
            }                                                                                                \
            for (size_t half_ = first_; half_ < block_; half_ <<= 1)                                         \
                for (size_t base_ = start_; base_ < start_ + block_; base_ += half_ << 1)                    \
                    for (size_t i_ = base_; i_ < base_ + half_; i_++) UPDATE(f[i_], f[i_ + half_]);          \
        }                                                                                                    \
        for (size_t half_ = block_; half_ < size_; half_ <<= 1)                                              \
            for (size_t base_ = 0; base_ < size_; base_ += half_ << 1)                                       \
                for (size_t i_ = base_; i_ < base_ + half_; i_++) UPDATE(f[i_], f[i_ + half_]);              \
    } while (0)
#define KB_ADD_TO_SUPERSET(without, with) ((with) += (without))
#define KB_ADD_TO_SUBSET(without, with) ((without) += (with))
#define KB_TAKE_FROM_SUBSET(without, with) ((without) -= (with))

/* Each entry becomes the sum over the subsets of its mask. */
KB_WIDE static void kb_subset_sums(int32_t *f, int nodes) { KB_EACH_PAIR(f, nodes, KB_ADD_TO_SUPERSET); }

/* Each entry becomes the sum over the supersets of its mask. */
KB_WIDE static void kb_superset_sums(uint64_t *f, int nodes) { KB_EACH_PAIR(f, nodes, KB_ADD_TO_SUBSET); }

/* Undoes kb_superset_sums, modulo 2^64. */
KB_WIDE static void kb_superset_differences(uint64_t *f, int nodes) {
    KB_EACH_PAIR(f, nodes, KB_TAKE_FROM_SUBSET);
}

KB_WIDE static void kb_multiply(uint64_t *f, const uint64_t *g, size_t size) {
    for (size_t i = 0; i < size; i++) f[i] *= g[i];
}

/* The fewest nodes of a mask that at least `request` of `touching` items touch; `nodes` at most.
   `inside` holds subset sums: the items attached to nothing outside a mask. */
KB_WIDE static int kb_smallest(const int32_t *inside, int64_t touching, int64_t request, int nodes) {
    size_t size = (size_t)1 << nodes, full = size - 1;
    int smallest = nodes;
    for (size_t mask = 1; mask < size; mask++) {
        int members = touching - inside[full ^ mask] >= request ? __builtin_popcountll(mask) : nodes;
        smallest = members < smallest ? members : smallest;
    }
    return smallest;
}

/* The fewest nodes of a flagged mask; nodes + 1 if no mask is flagged. */
KB_WIDE static int kb_smallest_flagged(const uint8_t *flags, int nodes) {
    size_t size = (size_t)1 << nodes;
    int smallest = nodes + 1;
    for (size_t mask = 0; mask < size; mask++) {
        int members = flags[mask] ? __builtin_popcountll(mask) : nodes + 1;
        smallest = members < smallest ? members : smallest;
    }
    return smallest;
}

/* Rank of a number of nodes by `target`: fewer than the target rank before more, larger ones of those first. */
#define KB_RANK(members, target) ((members) <= (target) ? (target) - (members) : (members))

/* The lowest reachable mask of the best rank; 0 if none is reachable. At most 24 nodes, as a key of 32 bits has
   the rank above the mask. */
KB_WIDE static uint64_t kb_best_reached(const uint64_t *reach, int target, int nodes) {
    size_t size = (size_t)1 << nodes;
    uint32_t best = UINT32_MAX;
    for (size_t mask = 1; mask < size; mask++) {
        int members = __builtin_popcountll(mask);
        uint32_t key = (uint32_t)KB_RANK(members, target) << nodes | (uint32_t)mask;
        key = reach[mask] ? key : UINT32_MAX;
        best = key < best ? key : best;
    }
    return best == UINT32_MAX ? 0 : best & (size - 1);
}

/* 2 for a mask that is a hint of `smallest` nodes, 1 for a larger hint, 0 for no hint. */
KB_WIDE static void kb_flag(uint8_t *flags, const int32_t *available, const int32_t *reusable,
                            int64_t touching, int64_t request, int smallest, int nodes) {
    size_t size = (size_t)1 << nodes, full = size - 1;
    for (size_t mask = 1; mask < size; mask++) {
        int hint = (reusable[full ^ mask] == 0) & (touching - available[full ^ mask] >= request);
        flags[mask] = hint * (1 + (__builtin_popcountll(mask) == smallest));
    }
}

#endif
