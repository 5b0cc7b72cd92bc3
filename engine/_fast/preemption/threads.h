/* How many threads a loop over nodes uses. */
#ifndef KUBENGINE_THREADS_H
#define KUBENGINE_THREADS_H

#ifdef _OPENMP
#include <omp.h>
#endif

/* Returns the number that the caller asked for, or with 0 the one that OpenMP chooses. A build without OpenMP,
   such as that for musl, has one thread. */
static inline int kb_threads(int wanted) {
#ifdef _OPENMP
    return wanted > 0 ? wanted : omp_get_max_threads();
#else
    (void)wanted;
    return 1;
#endif
}

#endif
