/* Word loops of the bitset kernels. On x86-64 the loader picks a copy built for the CPU it runs on. */
#ifndef KUBENGINE_BITSET_H
#define KUBENGINE_BITSET_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__)
#define KB_CLONES __attribute__((target_clones("avx2", "popcnt", "default")))
#else
#define KB_CLONES
#endif

KB_CLONES static int64_t kb_count(const uint64_t *a, size_t words) {
    int64_t total = 0;
    for (size_t i = 0; i < words; i++) total += __builtin_popcountll(a[i]);
    return total;
}

KB_CLONES static int64_t kb_count_and(const uint64_t *a, const uint64_t *b, size_t words) {
    int64_t total = 0;
    for (size_t i = 0; i < words; i++) total += __builtin_popcountll(a[i] & b[i]);
    return total;
}

KB_CLONES static int64_t kb_count_andnot(const uint64_t *a, const uint64_t *b, size_t words) {
    int64_t total = 0;
    for (size_t i = 0; i < words; i++) total += __builtin_popcountll(a[i] & ~b[i]);
    return total;
}

KB_CLONES static void kb_andnot(const uint64_t *a, const uint64_t *b, uint64_t *out, size_t words) {
    for (size_t i = 0; i < words; i++) out[i] = a[i] & ~b[i];
}

KB_CLONES static void kb_and(const uint64_t *a, const uint64_t *b, uint64_t *out, size_t words) {
    for (size_t i = 0; i < words; i++) out[i] = a[i] & b[i];
}

#endif
