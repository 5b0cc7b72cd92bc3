/* The data of the probe loop: registered probes, connections in flight, and news for Python.  Nothing here
 * grows with traffic: news is stored in its probe, so the list of probes with news is bounded by the number
 * of probes.  Probes are allocated in blocks and never move; the text that many of them send is stored
 * once. */
#ifndef KUBENGINE_PROBING_TABLE_H
#define KUBENGINE_PROBING_TABLE_H

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "location.h"
#include "response.h"
#include "grpc.h"
#include "state.h"
#include "text.h"
#include "wheel.h"

enum probe_kind { KIND_TCP = 0, KIND_HTTP = 1, KIND_GRPC = 2, KIND_EXEC = 3, KIND_LIBRARY = 4, KIND_H2C = 5 };
enum probe_news { NEWS_PUBLISHED = 1, NEWS_OUTCOME = 2, NEWS_ENDED = 4, NEWS_DUE = 8, NEWS_SLOW = 16 };
enum probe_reason {
    REASON_NONE = 0,
    REASON_HTTP_STATUS,
    REASON_FOREIGN_REDIRECT,
    REASON_CONNECT,
    REASON_TIMEOUT_CONNECT,
    REASON_TIMEOUT_RESPONSE,
    REASON_MALFORMED,
    REASON_CLOSED,
    REASON_IO,
    REASON_BODY,
    REASON_TIMEOUT_BODY,
    REASON_LOCATION,
    REASON_REDIRECTS,
    REASON_LOCAL,
    REASON_GRPC_SERVING,
    REASON_GRPC_STATUS,
    REASON_GRPC_HTTP,
    REASON_GRPC_PROTOCOL,
    REASON_GRPC_CLOSED,
    REASON_NO_TARGET,
    REASON_LIBRARY,
    REASON_EXEC_EXIT,
    REASON_EXEC_TIMEOUT,
    REASON_NETWORK
};

#define PROBE_BUCKETS 12        /* eleven bounds and infinity */
#define PROBE_LATE_NS 10000000u /* a probe that starts later than this counts as late */
#define PROBE_REDIRECTS 10
#define PROBE_BLOCK 64 /* probes allocated together */
#define PROBE_BURST 64 /* probes that may begin together */
#define NS_PER_MS 1000000u

/* Upper bounds in nanoseconds: Prometheus' default ones for durations, ours for lateness. */
static const uint64_t DURATION_BOUNDS[PROBE_BUCKETS - 1] = {5000000,     10000000,    25000000,    50000000,
                                                            100000000,   250000000,   500000000,   1000000000,
                                                            2500000000u, 5000000000u, 10000000000u};
static const uint64_t LATENESS_BOUNDS[PROBE_BUCKETS - 1] = {1000000,   2000000,    5000000,    10000000,
                                                            20000000,  50000000,   100000000,  200000000,
                                                            500000000, 1000000000, 5000000000u};

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} probe_address;

typedef struct connection connection;

/* A row of the table: half of it is times and counters. */
typedef struct probe {
    timer tick;
    struct probe *next_news, *next; /* link of its waiting queue, or of the free list */
    connection *connected;
    probe_text *text;
    char *excerpt; /* of a command's output, a body or a refusal, until Python reads it */
    probe_state state;
    probe_observation seen;
    uint64_t period_ns, timeout_ns;
    uint64_t start_period_ns; /* until the container has succeeded once; 0 = period_ns */
    uint64_t counted_ns;      /* when a failure last counted, or the first could have */
    uint64_t due_ns;          /* the scheduled start of the current or next tick */
    uint64_t late_from_ns;    /* scheduled start of the current tick, on the grid */
    uint64_t began_ns;
    uint64_t duration_sum_us;
    uint64_t cpu_ns; /* of KIND_EXEC: the CPU time of this thread for it */
    uint64_t successes;
    uint32_t others[4]; /* failure, warning, unknown, error */
    uint32_t durations[PROBE_BUCKETS];
    uint32_t duration_us, lateness_us; /* of the last probe */
    uint32_t late;
    uint32_t key, generation;
    int32_t detail;
    int network; /* network.h */
    union {
        probe_address address;
        char *container; /* of KIND_EXEC: its id for the runtime */
    } target;
    uint16_t excerpt_len;
    uint8_t kind, initial, registered, running, tick_waiting, queued, news, listed, ended, outcome, reason,
        has_target,
        early; /* early = a failure does not count: less than a period has passed since the last that could */
} probe;

enum connection_phase { CONNECTION_FREE = 0, CONNECTION_CONNECTING, CONNECTION_SENDING, CONNECTION_READING };

struct connection {
    timer deadline;
    probe *owner;
    connection *next_free;
    char *request;         /* kept, like output, for the next probe */
    char *output;          /* of KIND_EXEC: EXEC_OUTPUT_LIMIT bytes */
    grpc_buffers *buffers; /* of KIND_EXEC, KIND_GRPC and KIND_H2C */
    uint64_t began_ns;
    uint64_t lag_ns; /* the loop's when the connection began */
    probe_address target;
    uint32_t request_len, request_size, path_len, sent;
    int fd;
    uint8_t phase, redirects, extended, watched, slow;
    union {
        http_response http;
        grpc_answer grpc;
    } answer;
};

typedef struct {
    probe *first, *last;
    uint32_t length;
} probe_queue;

typedef struct {
    pthread_mutex_t lock;
    atomic_int waiters;
    atomic_int stopping;
    timer_wheel wheel;
    probe **blocks; /* the probe of a key is in blocks[key / PROBE_BLOCK] */
    probe *free_probes;
    uint32_t capacity, registered;
    probe_texts texts;
    connection *free_connections;
    connection **connections;
    uint32_t allocated, open, most_open, limit;
    uint32_t execs, exec_limit; /* connections to the runtime */
    probe_queue waiting, waiting_for_runtime;
    struct sockaddr_un runtime; /* no path = there is none */
    uint16_t first_ephemeral_port;
    probe *first_news, *last_news;
    int epoll_fd, wake_fd, news_fd;
    int home_fd; /* the namespace of the node's network */
    int network; /* the thread's current namespace, as probes name it */
    uint8_t notified, running, sleeping;
    uint64_t sleeping_until; /* tick */
    uint64_t lag_ns;         /* time in which the thread could not run although a probe was due */
    uint64_t begun, outcomes[5], redirects, handed_over, late, notifications, wakeups;
    uint64_t lateness[PROBE_BUCKETS], lateness_sum_ns;
    uint64_t networks_entered, early_failures;
    uint8_t buffer[65536];
} probe_loop;

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* The CPU time of the thread so far, read only when it is shown. */
static inline uint64_t spent_ns(const probe *p) {
    return p->kind == KIND_EXEC ? clock_ns(CLOCK_THREAD_CPUTIME_ID) : 0;
}

static inline uint64_t tick_of(uint64_t ns) { return (ns + NS_PER_MS - 1) / NS_PER_MS; }

static inline int bucket_of(const uint64_t *bounds, uint64_t value) {
    int i = 0;
    while (i < PROBE_BUCKETS - 1 && value > bounds[i]) i++;
    return i;
}

static inline void loop_lock(probe_loop *l) {
    atomic_fetch_add(&l->waiters, 1);
    pthread_mutex_lock(&l->lock);
    atomic_fetch_sub(&l->waiters, 1);
}

static inline void loop_unlock(probe_loop *l) { pthread_mutex_unlock(&l->lock); }

/* The loop's thread yields the lock to other threads that wait to register or read. */
static inline void loop_yield_lock(probe_loop *l) {
    while (atomic_load_explicit(&l->waiters, memory_order_relaxed) > 0) {
        pthread_mutex_unlock(&l->lock);
        sched_yield();
        pthread_mutex_lock(&l->lock);
    }
}

static inline void eventfd_raise(int fd) {
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static inline void eventfd_clear(int fd) {
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

static inline void loop_wake_for(probe_loop *l, uint64_t tick) {
    if (l->sleeping && tick < l->sleeping_until) {
        l->sleeping = 0;
        eventfd_raise(l->wake_fd);
    }
}

static inline void probe_notify(probe_loop *l, probe *p, uint8_t news) {
    p->news |= news;
    if (p->listed) return;
    p->listed = 1;
    p->next_news = 0;
    if (l->last_news)
        l->last_news->next_news = p;
    else
        l->first_news = p;
    l->last_news = p;
}

static inline void queue_put(probe_queue *q, probe *p) {
    if (p->queued) return;
    p->queued = 1;
    p->next = 0;
    if (q->last)
        q->last->next = p;
    else
        q->first = p;
    q->last = p;
    q->length++;
}

static inline probe *queue_take(probe_queue *q) {
    probe *p = q->first;
    if (!p) return 0;
    q->first = p->next;
    if (!q->first) q->last = 0;
    q->length--;
    p->queued = 0;
    return p;
}

static inline void probe_enqueue(probe_loop *l, probe *p) {
    queue_put(p->kind == KIND_EXEC ? &l->waiting_for_runtime : &l->waiting, p);
}

/* The registered probe of a key, or NULL. */
static inline probe *loop_probe(const probe_loop *l, uint32_t key) {
    probe *p = key < l->capacity ? &l->blocks[key / PROBE_BLOCK][key % PROBE_BLOCK] : 0;
    return p && p->registered ? p : 0;
}

static inline void probe_drop_excerpt(probe *p) {
    free(p->excerpt);
    p->excerpt = 0;
    p->excerpt_len = 0;
}

static inline void probe_drop_target(probe_loop *l, probe *p) {
    text_drop(&l->texts, p->text);
    p->text = 0;
    if (p->kind == KIND_EXEC && p->has_target) free(p->target.container);
    p->has_target = 0;
}

/* Reuse the slot of a removed probe once no list holds it. */
static inline void probe_free_if_done(probe_loop *l, probe *p) {
    if (p->registered || p->queued || p->listed) return;
    probe_drop_excerpt(p);
    p->next = l->free_probes;
    l->free_probes = p;
}

static inline uint32_t microseconds(uint64_t ns) {
    return ns / 1000 < UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX;
}

/* Ticks start on multiples of this number of milliseconds, so that many probes share a wake-up and the caches that
 * the first of them warms: the coarsest grid on which the period stays exact and at most PROBE_BURST probes start
 * together.  The phase of a probe is random anyway.  Commands have no grid, since each starts a process. */
static inline uint64_t grid_of(const probe_loop *l, const probe *p, uint64_t period_ns) {
    static const uint64_t grids[] = {200, 100, 40, 20};
    uint64_t i, last = sizeof grids / sizeof *grids - 1;
    if (period_ns < 1000000000u) return 1;
    for (i = p->kind == KIND_EXEC ? last : 0; i <= last; i++) {
        uint64_t grid_ns = grids[i] * NS_PER_MS;
        if (period_ns % grid_ns == 0 && (i == last || l->registered * grid_ns <= PROBE_BURST * period_ns))
            return grids[i];
    }
    return 1;
}

static inline int probe_is_hurried(const probe *p) {
    return p->start_period_ns && probe_is_starting(&p->state, &p->seen);
}

static inline uint64_t probe_interval(const probe *p) {
    return probe_is_hurried(p) ? p->start_period_ns : p->period_ns;
}

static inline void probe_schedule(probe_loop *l, probe *p, uint64_t due_ns, uint64_t grid) {
    uint64_t tick = (tick_of(due_ns) + grid - 1) / grid * grid;
    p->due_ns = due_ns;
    timer_arm(&l->wheel, &p->tick, tick);
    loop_wake_for(l, tick);
}

/* While a container starts, failures count at most once per period: no container is killed sooner. */
static inline void probe_check_earliness(probe *p) {
    uint64_t now;
    p->early = 0;
    if (!probe_is_hurried(p)) return;
    now = monotonic_ns();
    if (now < p->counted_ns + p->period_ns)
        p->early = 1;
    else
        p->counted_ns = now;
}

/* Start the tick that was due at late_from_ns. */
static inline void probe_begin(probe_loop *l, probe *p) {
    uint8_t updates[2], action;
    int count = 0;
    if (p->ended || !p->registered) return;
    action =
        probe_tick(&p->state, &p->seen, (int64_t)(monotonic_ns() / NS_PER_MS), p->initial, updates, &count);
    if (count) probe_notify(l, p, NEWS_PUBLISHED);
    if (action == ACTION_END) {
        p->ended = 1;
        timer_cancel(&l->wheel, &p->tick);
        probe_notify(l, p, NEWS_ENDED);
    } else if (action == ACTION_PROBE) {
        p->running = 1;
        p->began_ns = 0;
        probe_check_earliness(p);
        probe_enqueue(l, p);
    }
}

/* Handle the timer. */
static inline void probe_due(probe_loop *l, probe *p, uint64_t now) {
    uint64_t due = p->tick.expires * NS_PER_MS, every = probe_interval(p), next = p->due_ns + every;
    if (next <= now) next += (now - next) / every * every + every;
    probe_schedule(l, p, next, grid_of(l, p, every));
    if (p->running) {
        p->tick_waiting = every == p->period_ns;
        return;
    }
    p->late_from_ns = due;
    probe_begin(l, p);
}

/* Start the first attempt of a tick. */
static inline void probe_began(probe_loop *l, probe *p, uint64_t now) {
    uint64_t late = now > p->late_from_ns ? now - p->late_from_ns : 0;
    p->began_ns = now;
    p->lateness_us = microseconds(late);
    l->begun++;
    l->lateness[bucket_of(LATENESS_BOUNDS, late)]++;
    l->lateness_sum_ns += late;
    if (late > PROBE_LATE_NS) {
        p->late++;
        l->late++;
    }
}

/* Handle the outcome of one attempt.  `excerpt` has details; it may be NULL. */
static inline void probe_outcome(probe_loop *l, probe *p, uint8_t outcome, uint8_t reason, int32_t detail,
                                 const char *excerpt, uint32_t excerpt_len) {
    uint8_t updates[2], hurried = (uint8_t)probe_is_hurried(p);
    uint64_t now, took;
    int count = 0;
    if (p->early && outcome != OUTCOME_SUCCESS && outcome != OUTCOME_WARNING) {
        l->early_failures++;
        p->running = 0;
        return;
    }
    if (probe_finish(&p->state, outcome, updates, &count) == ATTEMPT_RETRY) {
        probe_enqueue(l, p);
        return;
    }
    now = monotonic_ns();
    if (hurried && !probe_is_hurried(p))
        probe_schedule(l, p, now + p->period_ns, grid_of(l, p, p->period_ns));
    took = p->began_ns ? now - p->began_ns : 0;
    p->duration_us = microseconds(took);
    l->outcomes[outcome]++;
    if (outcome == OUTCOME_SUCCESS)
        p->successes++;
    else
        p->others[outcome - 1]++;
    if (outcome == OUTCOME_SUCCESS || outcome == OUTCOME_WARNING) {
        p->durations[bucket_of(DURATION_BOUNDS, took)]++;
        p->duration_sum_us += p->duration_us;
    }
    p->outcome = outcome;
    if (outcome != OUTCOME_SUCCESS) {
        p->reason = reason;
        p->detail = detail;
        probe_drop_excerpt(p);
        if (excerpt && excerpt_len && (p->excerpt = malloc(excerpt_len))) {
            memcpy(p->excerpt, excerpt, excerpt_len);
            p->excerpt_len = (uint16_t)excerpt_len;
        }
        probe_notify(l, p, NEWS_OUTCOME);
    }
    if (count) probe_notify(l, p, NEWS_PUBLISHED);
    p->running = 0;
    if (p->tick_waiting) {
        p->tick_waiting = 0;
        p->late_from_ns = now;
        probe_begin(l, p);
    }
}

#endif
