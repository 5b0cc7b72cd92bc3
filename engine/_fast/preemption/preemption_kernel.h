/* Victims for a preemptor on one node: classes, sums, then the search. Compiled for plain hardware and,
   on x86-64, for AVX2 and AVX-512; the program selects one at run time. */
#ifndef KUBENGINE_PREEMPTION_KERNEL_H
#define KUBENGINE_PREEMPTION_KERNEL_H

#include "preemption_types.h"

#define KB_NAME(name) name##_plain
#define KB_LANES 2
#include "preemption_scan.h"
#include "preemption_search.h"
#include "preemption_kinds.h"
#undef KB_NAME
#undef KB_LANES

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KB_HAVE_AVX 1
#pragma GCC push_options
#pragma GCC target("avx2")
#define KB_NAME(name) name##_avx2
#define KB_LANES 4
#include "preemption_scan.h"
#include "preemption_search.h"
#include "preemption_kinds.h"
#undef KB_NAME
#undef KB_LANES
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw")
#define KB_NAME(name) name##_avx512
#define KB_LANES 8
#include "preemption_scan.h"
#include "preemption_search.h"
#include "preemption_kinds.h"
#undef KB_NAME
#undef KB_LANES
#pragma GCC pop_options
#endif

enum { KB_LIVE = 1, KB_CRITICAL = 2, KB_HAS_PRIORITY = 4 };

typedef struct {
    const uint8_t *qos, *flags;
    const int32_t *priority;
    int critical, has_priority;
    int32_t value; /* the preemptor's priority */
} kb_preemptor;

static int kb_width = 0; /* doubles to a register; 0: not yet decided */

static int32_t kb_choose(const kb_columns *columns, const int64_t *needs, int32_t *rows, int32_t n,
                         int32_t *victims, kb_workspace *space) {
#ifdef KB_HAVE_AVX
    if (kb_width == 0)
        kb_width = __builtin_cpu_supports("avx512dq") ? 8 : __builtin_cpu_supports("avx2") ? 4 : 2;
    if (kb_width == 8) return kb_choose_avx512(columns, needs, rows, n, victims, space);
    if (kb_width == 4) return kb_choose_avx2(columns, needs, rows, n, victims, space);
#endif
    return kb_choose_plain(columns, needs, rows, n, victims, space);
}

/* Chooses victims among `rows` (NULL: first .. first + n), which are in list order. `scratch` holds 3 n entries,
   `victims` n. Amounts that remain short go to `shortage`. Returns the number of victims, 0 if something remains
   short. */
static int32_t kb_victims(const kb_columns *columns, const kb_preemptor *who, const int64_t *needs,
                          const int32_t *rows, int64_t first, int64_t n, int32_t *scratch, int32_t *victims,
                          int64_t *shortage, kb_workspace *space) {
    int32_t *members[3] = {scratch, scratch + n, scratch + 2 * n}, size[3] = {0, 0, 0};
    int64_t after[KB_MAX_NEEDS], best_effort_left[KB_MAX_NEEDS], wanted[KB_MAX_NEEDS];
    int32_t guaranteed = 0, burstable = 0, best_effort = 0;
    int64_t i;
    int s, short_of = 0, impossible = 0;
    for (s = 0; s < columns->needs; s++) {
        shortage[s] = 0;
        short_of |= needs[s] > 0;
    }
    if (!short_of) return 0;
    for (i = 0; i < n; i++) {
        const int32_t row = rows ? rows[i] : (int32_t)(first + i);
        const uint8_t flags = who->flags[row];
        const int class = who->qos[row] < 3 ? who->qos[row] : 2;
        const int beaten =
            (who->critical && !(flags & KB_CRITICAL)) ||
            (who->has_priority && (flags & KB_HAS_PRIORITY) && who->value > who->priority[row]);
        members[class][size[class]] = row;
        size[class] += (flags & KB_LIVE) && beaten;
    }
    for (s = 0; s < columns->needs; s++) {
        best_effort_left[s] = kb_left(columns, s, needs[s], members[0], size[0]);
        after[s] = kb_left(columns, s, best_effort_left[s], members[1], size[1]);
        shortage[s] = kb_left(columns, s, after[s], members[2], size[2]);
        impossible |= shortage[s] > 0;
    }
    if (impossible) return 0;
    guaranteed = kb_choose(columns, after, members[2], size[2], victims, space);
    for (s = 0; s < columns->needs; s++)
        wanted[s] = kb_left(columns, s, best_effort_left[s], victims, guaranteed);
    burstable = kb_choose(columns, wanted, members[1], size[1], victims + guaranteed, space);
    for (s = 0; s < columns->needs; s++)
        wanted[s] = kb_left(columns, s, needs[s], victims, guaranteed + burstable);
    best_effort = kb_choose(columns, wanted, members[0], size[0], victims + guaranteed + burstable, space);
    /* BestEffort first, then Burstable, then Guaranteed */
    memcpy(scratch, victims, (size_t)(guaranteed + burstable + best_effort) * sizeof *victims);
    memcpy(victims, scratch + guaranteed + burstable, (size_t)best_effort * sizeof *victims);
    memcpy(victims + best_effort, scratch + guaranteed, (size_t)burstable * sizeof *victims);
    memcpy(victims + best_effort + burstable, scratch, (size_t)guaranteed * sizeof *victims);
    return guaranteed + burstable + best_effort;
}

#endif
