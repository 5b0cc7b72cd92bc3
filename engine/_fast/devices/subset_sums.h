/* Sums over the lattice of node sets: an array of 2^nodes numbers indexed by mask. */
#ifndef KUBENGINE_LATTICE_H
#define KUBENGINE_LATTICE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__)
#define KB_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define KB_WIDE
#endif

/* Each entry becomes the sum over the subsets of its mask. */
KB_WIDE static void kb_subset_sums(int32_t *f, int nodes) {
    size_t size = (size_t)1 << nodes;
    for (size_t half = 1; half < size; half <<= 1)
        for (size_t base = 0; base < size; base += half << 1)
            for (size_t i = 0; i < half; i++) f[base + half + i] += f[base + i];
}

/* Each entry becomes the sum over the supersets of its mask. */
KB_WIDE static void kb_superset_sums(uint64_t *f, int nodes) {
    size_t size = (size_t)1 << nodes;
    for (size_t half = 1; half < size; half <<= 1)
        for (size_t base = 0; base < size; base += half << 1)
            for (size_t i = 0; i < half; i++) f[base + i] += f[base + half + i];
}

/* Undoes kb_superset_sums, modulo 2^64. */
KB_WIDE static void kb_superset_differences(uint64_t *f, int nodes) {
    size_t size = (size_t)1 << nodes;
    for (size_t half = 1; half < size; half <<= 1)
        for (size_t base = 0; base < size; base += half << 1)
            for (size_t i = 0; i < half; i++) f[base + i] -= f[base + half + i];
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

/* The fewest nodes of a mask that is flagged; nodes + 1 if none is. */
KB_WIDE static int kb_smallest_flagged(const uint8_t *flags, int nodes) {
    size_t size = (size_t)1 << nodes;
    int smallest = nodes + 1;
    for (size_t mask = 0; mask < size; mask++) {
        int members = flags[mask] ? __builtin_popcountll(mask) : nodes + 1;
        smallest = members < smallest ? members : smallest;
    }
    return smallest;
}

/* 2 where a mask is a hint of `smallest` nodes, 1 where it is a larger hint, 0 where it is none. */
KB_WIDE static void kb_flag(uint8_t *flags, const int32_t *available, const int32_t *reusable,
                            int64_t touching, int64_t request, int smallest, int nodes) {
    size_t size = (size_t)1 << nodes, full = size - 1;
    for (size_t mask = 1; mask < size; mask++) {
        int hint = (reusable[full ^ mask] == 0) & (touching - available[full ^ mask] >= request);
        flags[mask] = hint * (1 + (__builtin_popcountll(mask) == smallest));
    }
}

#endif
