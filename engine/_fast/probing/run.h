/* The probe loop itself: its thread's cycle, and what Python may do to it from outside under its lock. */
#ifndef KUBENGINE_PROBING_RUN_H
#define KUBENGINE_PROBING_RUN_H

#include <stddef.h>
#include <sys/eventfd.h>

#include "connect.h"

#define LOOP_STARTS 32 /* connections to start before sockets are checked again */
#define LOOP_EVENTS 256
#define LOOP_LAG_NS 2000000u /* a later wake-up is caused by the machine */

/* Close every descriptor; counters can still be read. */
static inline void loop_close_descriptors(probe_loop *l) {
    uint32_t i;
    int *fds[] = {&l->epoll_fd, &l->wake_fd, &l->news_fd, &l->home_fd};
    for (i = 0; i < l->allocated; i++) connection_drop(l, l->connections[i]);
    for (i = 0; i < 4; i++) {
        if (*fds[i] >= 0) close(*fds[i]);
        *fds[i] = -1;
    }
}

static inline void loop_close(probe_loop *l) {
    uint32_t i;
    loop_close_descriptors(l);
    for (i = 0; i < l->allocated; i++) {
        free(l->connections[i]->request);
        free(l->connections[i]->output);
        free(l->connections[i]->buffers);
        free(l->connections[i]);
    }
    for (i = 0; i < l->capacity; i++) {
        probe *p = &l->blocks[i / PROBE_BLOCK][i % PROBE_BLOCK];
        probe_drop_excerpt(p);
        probe_drop_target(l, p);
    }
    for (i = 0; i < l->capacity / PROBE_BLOCK; i++) free(l->blocks[i]);
    free(l->connections);
    free(l->blocks);
    pthread_mutex_destroy(&l->lock);
}

/* The lowest ephemeral port. */
static inline uint16_t first_ephemeral_port(void) {
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    unsigned first = 1024;
    if (file) {
        if (fscanf(file, "%u", &first) != 1 || first > 65535) first = 1024;
        fclose(file);
    }
    return (uint16_t)first;
}

/* 0, or an errno. */
static inline int loop_open(probe_loop *l, uint32_t limit, uint32_t exec_limit) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = 0}};
    memset(l, 0, offsetof(probe_loop, buffer));
    l->epoll_fd = l->wake_fd = l->news_fd = l->home_fd = -1;
    pthread_mutex_init(&l->lock, 0);
    wheel_init(&l->wheel, monotonic_ns() / NS_PER_MS);
    l->limit = limit;
    l->exec_limit = exec_limit;
    l->first_ephemeral_port = first_ephemeral_port();
    l->connections = calloc(limit, sizeof *l->connections);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->news_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->home_fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    l->network = NETWORK_OF_THE_NODE;
    if (!l->connections || l->epoll_fd < 0 || l->wake_fd < 0 || l->news_fd < 0) return errno ? errno : ENOMEM;
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->wake_fd, &event) < 0) return errno;
    return 0;
}

static inline probe *probe_of_timer(timer *t) { return (probe *)((char *)t - offsetof(probe, tick)); }

static inline connection *connection_of_timer(timer *t) {
    return (connection *)((char *)t - offsetof(connection, deadline));
}

static inline void loop_run_timers(probe_loop *l, uint64_t now) {
    timer *t;
    wheel_advance(&l->wheel, now / NS_PER_MS);
    while ((t = wheel_take(&l->wheel))) {
        if (t->kind)
            connection_timed_out(l, connection_of_timer(t), now);
        else
            probe_due(l, probe_of_timer(t), now);
    }
}

static inline int loop_is_full(const probe_loop *l, const probe *p) {
    if (p->kind == KIND_LIBRARY || !p->has_target) return 0;
    return l->open == l->limit || (p->kind == KIND_EXEC && l->execs == l->exec_limit);
}

/* Start waiting probes while connections are free.  1 = more probes wait, after the sockets were checked. */
static inline int loop_start_some(probe_loop *l, probe_queue *q) {
    int starts = 0;
    while (q->first) {
        probe *p = q->first;
        uint64_t now, spent;
        if (!p->registered || !p->running) {
            queue_take(q);
            probe_free_if_done(l, p);
            continue;
        }
        if (loop_is_full(l, p)) return 0;
        if (starts++ == LOOP_STARTS) return 1;
        queue_take(q);
        now = monotonic_ns();
        if (!p->began_ns) probe_began(l, p, now);
        if (p->kind == KIND_LIBRARY)
            probe_notify(l, p, NEWS_DUE);
        else if (!p->has_target)
            probe_outcome(l, p, OUTCOME_ERROR, REASON_NO_TARGET, 0, 0, 0);
        else {
            spent = spent_ns(p);
            if (!connection_begin(l, p, now)) probe_outcome(l, p, OUTCOME_ERROR, REASON_LOCAL, ENOMEM, 0, 0);
            p->cpu_ns += spent_ns(p) - spent;
        }
        loop_yield_lock(l);
    }
    return 0;
}

static inline void loop_notify(probe_loop *l) {
    if (!l->first_news || l->notified) return;
    l->notified = 1;
    l->notifications++;
    eventfd_raise(l->news_fd);
}

/* Run the cycle of the loop's thread until loop_stop.  Never touches Python. */
static inline void loop_run(probe_loop *l) {
    struct epoll_event events[LOOP_EVENTS];
    pthread_mutex_lock(&l->lock);
    l->running = 1;
    while (!atomic_load(&l->stopping)) {
        uint64_t now = monotonic_ns(), until = 0;
        int i, n, more, wait = 0;
        loop_run_timers(l, now);
        more = loop_start_some(l, &l->waiting);
        more |= loop_start_some(l, &l->waiting_for_runtime);
        network_go_home(l);
        loop_notify(l);
        if (!more) {
            uint64_t next = wheel_next(&l->wheel);
            now = monotonic_ns();
            if (next == WHEEL_NEVER)
                wait = -1;
            else if (next * NS_PER_MS > now) {
                uint64_t ms = (next * NS_PER_MS - now + NS_PER_MS - 1) / NS_PER_MS;
                wait = ms > 60000 ? 60000 : (int)ms;
                until = now + (uint64_t)wait * NS_PER_MS;
            }
            l->sleeping = wait != 0;
            l->sleeping_until = next;
        }
        pthread_mutex_unlock(&l->lock);
        n = epoll_wait(l->epoll_fd, events, LOOP_EVENTS, wait);
        pthread_mutex_lock(&l->lock);
        l->sleeping = 0;
        l->wakeups++;
        now = monotonic_ns();
        if (until && now > until + LOOP_LAG_NS) l->lag_ns += now - until;
        for (i = 0; i < n; i++) {
            connection *c = events[i].data.ptr;
            if (!c)
                eventfd_clear(l->wake_fd);
            else if (c->phase != CONNECTION_FREE) {
                probe *p = c->owner;
                uint64_t spent = spent_ns(p);
                connection_progress(l, c);
                p->cpu_ns += spent_ns(p) - spent;
            }
            loop_yield_lock(l);
        }
    }
    l->running = 0;
    pthread_mutex_unlock(&l->lock);
}

static inline void loop_stop(probe_loop *l) {
    atomic_store(&l->stopping, 1);
    eventfd_raise(l->wake_fd);
}

/* The following functions are called from other threads, with the lock held. */

static inline int loop_grow(probe_loop *l) {
    probe **grown = realloc(l->blocks, (l->capacity / PROBE_BLOCK + 1) * sizeof *grown);
    probe *block = grown ? calloc(PROBE_BLOCK, sizeof *block) : 0;
    uint32_t i;
    if (grown) l->blocks = grown;
    if (!block) return 0;
    l->blocks[l->capacity / PROBE_BLOCK] = block;
    for (i = PROBE_BLOCK; i-- > 0;) {
        block[i].key = l->capacity + i;
        block[i].next = l->free_probes;
        l->free_probes = &block[i];
    }
    l->capacity += PROBE_BLOCK;
    return 1;
}

static inline probe *loop_add(probe_loop *l) {
    probe *p;
    uint32_t key, generation;
    if (!l->free_probes && !loop_grow(l)) return 0;
    p = l->free_probes;
    l->free_probes = p->next;
    key = p->key;
    generation = p->generation + 1;
    memset(p, 0, sizeof *p);
    p->key = key;
    p->generation = generation;
    p->registered = 1;
    p->network = NETWORK_OF_THE_NODE;
    l->registered++;
    return p;
}

/* Drop the current attempt: its outcome would concern something that is gone. */
static inline void probe_abandon(probe_loop *l, probe *p) {
    if (p->connected) connection_drop(l, p->connected);
    p->generation++;
    p->running = 0;
    p->tick_waiting = 0;
    p->news &= (uint8_t)~(NEWS_DUE | NEWS_SLOW);
}

static inline void loop_remove(probe_loop *l, probe *p) {
    probe_abandon(l, p);
    timer_cancel(&l->wheel, &p->tick);
    probe_drop_target(l, p);
    l->registered--;
    p->registered = 0;
    probe_free_if_done(l, p);
}

/* Return when a container started, in monotonic time: a clock that is set later, by hours or for good, neither
 * delays its probes nor hurries them.  The runtime's own time may be in the future of one that was set back. */
static inline int64_t probe_started_ms(const probe_observation *seen) {
    int64_t age_ms = (int64_t)(clock_ns(CLOCK_REALTIME) / NS_PER_MS) - seen->started_at_ms;
    return (int64_t)(monotonic_ns() / NS_PER_MS) - (age_ms > 0 ? age_ms : 0);
}

/* Update the observation of the pod.  A probe of a container that is gone is abandoned. */
static inline void loop_observe(probe_loop *l, probe *p, const probe_observation *seen) {
    int hurried, another = p->seen.container != seen->container;
    int64_t started_ms;
    if (p->running && (another || seen->state != CONTAINER_RUNNING)) probe_abandon(l, p);
    hurried = probe_is_hurried(p);
    started_ms =
        another || p->seen.state != CONTAINER_RUNNING ? probe_started_ms(seen) : p->seen.started_at_ms;
    p->seen = *seen;
    p->seen.started_at_ms = started_ms;
    if (p->initial != RESULT_SUCCESS && probe_is_hurried(p) && (!hurried || another)) {
        p->counted_ns = monotonic_ns();
        probe_schedule(l, p, p->counted_ns + p->start_period_ns, 1);
    }
}

static inline void loop_trigger(probe_loop *l, probe *p) {
    if (!p->ended) probe_schedule(l, p, monotonic_ns(), 1);
}

static inline void probe_set_address(probe *p, int family, const char *packed, uint16_t port) {
    probe_address *a = &p->target.address;
    memset(a, 0, sizeof *a);
    a->any.sa_family = (sa_family_t)family;
    if (family == AF_INET6)
        memcpy(&a->v6.sin6_addr, packed, sizeof a->v6.sin6_addr);
    else
        memcpy(&a->v4.sin_addr, packed, sizeof a->v4.sin_addr);
    address_set_port(a, port);
    p->has_target = 1;
}

/* Wake the loop after another thread queued something. */
static inline void loop_poke(probe_loop *l) {
    if (l->waiting.first || l->waiting_for_runtime.first) loop_wake_for(l, 0);
}

/* Remove the next probe with news from the list; NULL if there is none. */
static inline probe *loop_next_news(probe_loop *l) {
    probe *p;
    while ((p = l->first_news)) {
        l->first_news = p->next_news;
        if (!l->first_news) l->last_news = 0;
        p->listed = 0;
        if (p->registered && p->news) return p;
        probe_free_if_done(l, p);
    }
    return 0;
}

#endif
