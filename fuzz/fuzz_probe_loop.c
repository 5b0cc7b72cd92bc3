/* Whole conversations of the probe loop with a hostile server, over real sockets: connections, redirects, deadlines,
 * probes that are removed in the middle.  The loop runs in a thread of its own, as in the agent.
 *
 * The first byte selects the kind of probe (lowest three bits), whether the server resets its connections (0x08),
 * whether the probe is removed in the middle (0x10) and whether another container comes (0x20); the second the
 * length of the pieces.  The rest are the server's bytes, the same on each connection. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>

#include "run.h"

#define CONNECTIONS 16
#define TIMEOUT_NS 50000000u

static probe_loop loop;
static int tcp_listener = -1, unix_listener = -1;
static uint16_t port;

static void *run(void *unused) {
    (void)unused;
    loop_run(&loop);
    return 0;
}

static int listen_at(int family, void *address, socklen_t size) {
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, address, size) < 0 || listen(fd, CONNECTIONS) < 0) abort();
    return fd;
}

static void begin(void) {
    struct sockaddr_in inet = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    socklen_t size = sizeof inet;
    const char *directory;
    pthread_t thread;
    if (loop_open(&loop, CONNECTIONS, CONNECTIONS)) abort();
    tcp_listener = listen_at(AF_INET, &inet, sizeof inet);
    getsockname(tcp_listener, (struct sockaddr *)&inet, &size);
    port = ntohs(inet.sin_port);
    directory = getenv("TMPDIR");
    snprintf(path.sun_path, sizeof path.sun_path, "%s/probe-loop-%d", directory ? directory : "/tmp",
             (int)getpid());
    unlink(path.sun_path);
    unix_listener = listen_at(AF_UNIX, &path, sizeof path);
    loop.runtime = path;
    if (pthread_create(&thread, 0, run, 0)) abort();
    pthread_detach(thread);
}

static uint32_t register_probe(uint8_t kind) {
    static const char loopback[] = {127, 0, 0, 1};
    static const char head[256]; /* frames, whose lengths the loop fills in */
    text_part parts[TEXT_PARTS] = {{"/a", 2}, {"name", 4}, {"A: b\r\n", 6}, {"", 0}};
    probe_observation seen = {
        .pod_known = 1, .container = 1, .state = CONTAINER_RUNNING, .started = kind % 2, .started_at_ms = 0};
    probe *p = loop_add(&loop);
    if (!p) abort();
    if (kind != KIND_HTTP) parts[TEXT_HEAD] = (text_part){head, sizeof head};
    p->kind = kind;
    p->period_ns = 3600u * 1000000000ull;
    p->timeout_ns = TIMEOUT_NS;
    p->state.type = kind % 2 ? PROBE_LIVENESS : PROBE_READINESS;
    p->state.failure_threshold = p->state.success_threshold = 1;
    p->initial = PROBE_INITIAL[p->state.type];
    if (kind != KIND_TCP && !(p->text = text_take(&loop.texts, parts))) abort();
    if (kind == KIND_EXEC) {
        p->target.container = strdup("0123456789abcdef");
        p->has_target = p->target.container != 0;
    } else
        probe_set_address(p, AF_INET, loopback, port);
    loop_observe(&loop, p, &seen);
    loop_trigger(&loop, p);
    return p->key;
}

static void serve(int fd, const uint8_t *data, size_t n, size_t piece, int resets) {
    struct linger at_once = {.l_onoff = 1};
    char ignored[4096];
    size_t at;
    for (at = 0; at < n; at += piece) {
        size_t size = n - at < piece ? n - at : piece;
        if (send(fd, data + at, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
        while (recv(fd, ignored, sizeof ignored, MSG_DONTWAIT) > 0) {
        }
    }
    if (resets) setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

/* Whether the attempt is over; its news is taken. */
static int is_over(uint32_t key) {
    probe *p;
    int over;
    loop_lock(&loop);
    eventfd_clear(loop.news_fd);
    loop.notified = 0;
    while ((p = loop_next_news(&loop))) {
        p->news = 0;
        probe_drop_excerpt(p);
    }
    p = loop_probe(&loop, key);
    if (!p || p->outcome > OUTCOME_ERROR || loop.open > loop.limit) abort();
    over = !p->running && p->successes + p->others[0] + p->others[1] + p->others[2] + p->others[3] > 0;
    loop_unlock(&loop);
    return over;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const uint8_t kinds[] = {KIND_TCP, KIND_HTTP, KIND_GRPC, KIND_EXEC,
                                    KIND_H2C, KIND_HTTP, KIND_EXEC, KIND_GRPC};
    uint8_t kind, how;
    uint32_t key;
    int listener, turns;
    size_t piece;
    probe *p;
    if (n < 2) return 0;
    if (tcp_listener < 0) begin();
    how = data[0];
    kind = kinds[how & 7];
    piece = data[1] < 128 ? 1u + data[1] : n;
    listener = kind == KIND_EXEC ? unix_listener : tcp_listener;
    loop_lock(&loop);
    key = register_probe(kind);
    loop_poke(&loop);
    loop_unlock(&loop);
    for (turns = 0; turns < CONNECTIONS; turns++) {
        struct pollfd fds[] = {{.fd = listener, .events = POLLIN}, {.fd = loop.news_fd, .events = POLLIN}};
        if (poll(fds, 2, TIMEOUT_NS / 500000) <= 0) break;
        if (fds[0].revents) {
            int fd = accept4(listener, 0, 0, SOCK_CLOEXEC);
            if (fd >= 0) serve(fd, data + 2, n - 2, piece, how & 0x08);
            if (how & 0x10) break;
        }
        if (how & 0x20) {
            probe_observation other = {
                .pod_known = 1, .container = 2, .state = CONTAINER_RUNNING, .started = 1};
            loop_lock(&loop);
            loop_observe(&loop, loop_probe(&loop, key), &other);
            loop_poke(&loop);
            loop_unlock(&loop);
            break;
        }
        if (fds[1].revents && is_over(key)) break;
    }
    loop_lock(&loop);
    p = loop_probe(&loop, key);
    loop_remove(&loop, p);
    loop_poke(&loop);
    if (loop.open || loop.execs || loop.registered) abort();
    loop_unlock(&loop);
    for (;;) { /* what the loop began and nobody has accepted */
        int fd = accept4(listener, 0, 0, SOCK_CLOEXEC);
        if (fd < 0) break;
        close(fd);
    }
    return 0;
}
