/* One probe's connections: connect, send, read, follow redirects, give up in time.  Non-blocking and
 * without SO_LINGER (a lingering close would block the loop).  Close to the fewest system calls: on the
 * same machine a handshake ends inside connect(), so the request is sent, or the result is known, before
 * epoll is called. */
#ifndef KUBENGINE_PROBING_CONNECT_H
#define KUBENGINE_PROBING_CONNECT_H

#include <sys/epoll.h>

#include "network.h"
#include "request.h"

#define EXEC_GRACE_NS 5000000000u /* how long the runtime may take to report its time-out */

static inline socklen_t address_size(const probe_address *a) {
    return a->any.sa_family == AF_INET6 ? sizeof a->v6 : sizeof a->v4;
}

/* Release a connection; its probe continues without it. */
static inline void connection_drop(probe_loop *l, connection *c) {
    if (c->phase == CONNECTION_FREE) return;
    timer_cancel(&l->wheel, &c->deadline);
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    if (c->owner->kind == KIND_EXEC) l->execs--;
    c->owner->connected = 0;
    c->owner = 0;
    c->phase = CONNECTION_FREE;
    c->next_free = l->free_connections;
    l->free_connections = c;
    l->open--;
}

static inline void connection_end(probe_loop *l, connection *c, uint8_t outcome, uint8_t reason,
                                  int32_t detail) {
    probe *p = c->owner;
    const char *excerpt = 0;
    uint32_t excerpt_len = 0;
    if (outcome == OUTCOME_WARNING && p->kind == KIND_HTTP) {
        excerpt = c->answer.http.excerpt;
        excerpt_len = c->answer.http.excerpt_len;
    } else if (reason == REASON_GRPC_STATUS || reason == REASON_EXEC_EXIT) {
        excerpt = grpc_text(&c->answer.grpc, &excerpt_len);
    }
    connection_drop(l, c); /* the response stays until the next start */
    probe_outcome(l, p, outcome, reason, detail, excerpt, excerpt_len);
}

/* Errors of this machine say nothing about the container: the attempt is an error, not a failure. */
static inline int errno_is_local(int error) {
    return error == EADDRNOTAVAIL || error == EMFILE || error == ENFILE || error == ENOBUFS ||
           error == ENOMEM;
}

static inline void connection_refused(probe_loop *l, connection *c, int error) {
    if (c->owner->kind == KIND_EXEC)
        connection_end(l, c, OUTCOME_ERROR, REASON_CONNECT, error);
    else if (errno_is_local(error))
        connection_end(l, c, OUTCOME_ERROR, REASON_LOCAL, error);
    else
        connection_end(l, c, OUTCOME_FAILURE, REASON_CONNECT, error);
}

static inline int connection_watch(probe_loop *l, connection *c, uint32_t events) {
    struct epoll_event event = {.events = events, .data = {.ptr = c}};
    int op = c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    c->watched = 1;
    return epoll_ctl(l->epoll_fd, op, c->fd, &event);
}

/* A connect to an unused ephemeral port can connect to itself (TCP simultaneous open). */
static inline int connection_met_itself(const probe_loop *l, const connection *c) {
    probe_address own;
    socklen_t size = sizeof own;
    if (c->owner->network < 0 && address_port(&c->target) < l->first_ephemeral_port) return 0;
    if (getsockname(c->fd, &own.any, &size) < 0) return 0;
    if (own.any.sa_family != c->target.any.sa_family || address_port(&own) != address_port(&c->target))
        return 0;
    if (own.any.sa_family == AF_INET) return own.v4.sin_addr.s_addr == c->target.v4.sin_addr.s_addr;
    return memcmp(&own.v6.sin6_addr, &c->target.v6.sin6_addr, sizeof own.v6.sin6_addr) == 0;
}

static inline void connection_progress(probe_loop *l, connection *c);

/* Open the socket and proceed as far as possible without waiting. */
static inline void connection_open(probe_loop *l, connection *c) {
    uint8_t kind = c->owner->kind;
    const struct sockaddr *to = kind == KIND_EXEC ? (const struct sockaddr *)&l->runtime : &c->target.any;
    socklen_t size = kind == KIND_EXEC ? sizeof l->runtime : address_size(&c->target);
    int error;
    c->phase = CONNECTION_CONNECTING;
    c->sent = 0;
    c->watched = 0;
    error = kind == KIND_EXEC ? 0 : network_enter(l, c->owner->network);
    if (error) {
        connection_end(l, c, OUTCOME_ERROR, REASON_NETWORK, error);
        return;
    }
    c->fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        connection_refused(l, c, errno);
        return;
    }
    if (connect(c->fd, to, size) < 0 && errno != EINPROGRESS) {
        connection_refused(l, c, errno);
        return;
    }
    if (kind == KIND_HTTP)
        http_reset(&c->answer.http);
    else if (kind == KIND_GRPC)
        grpc_reset(&c->answer.grpc, GRPC_HEALTH, c->buffers, 0);
    else if (kind == KIND_H2C)
        grpc_reset(&c->answer.grpc, GRPC_GET, c->buffers, 0);
    else if (kind == KIND_EXEC)
        grpc_reset(&c->answer.grpc, GRPC_EXEC, c->buffers, c->output);
    connection_progress(l, c);
}

static inline int connection_redirect(probe_loop *l, connection *c) {
    http_response *r = &c->answer.http;
    probe *p = c->owner;
    text_part header = text_get(p->text, TEXT_NAME), url_host = text_get(p->text, TEXT_URL_HOST), to;
    char path[HTTP_VALUE_SIZE * 4], here[AUTHORITY_SIZE], address[AUTHORITY_SIZE];
    text_part where = {here, authority_write(&c->target, here)};
    http_location found;
    uint8_t verdict;
    if (!r->location_len) return 0;
    switch (r->status) { /* those that net/http follows with GET */
    case 301:
    case 302:
    case 303:
    case 307:
    case 308: break;
    default: return 0;
    }
    if (url_host.len == 0) {
        url_host.at = address;
        url_host.len = (uint32_t)(address_write(&p->target.address, address) - address);
    }
    verdict = location_resolve(r->location, r->location_len, url_host.at, url_host.len,
                               c->request + sizeof REQUEST_GET - 1, c->path_len, path, sizeof path, &found);
    if (verdict == LOCATION_FOREIGN) return 0;
    if (verdict == LOCATION_BAD) {
        connection_end(l, c, OUTCOME_FAILURE, REASON_LOCATION, r->status);
        return 1;
    }
    if (++c->redirects >= PROBE_REDIRECTS) {
        connection_end(l, c, OUTCOME_FAILURE, REASON_REDIRECTS, PROBE_REDIRECTS);
        return 1;
    }
    if (verdict == LOCATION_TLS) {
        connection_drop(l, c);
        l->handed_over++;
        probe_notify(l, p, NEWS_DUE);
        return 1;
    }
    l->redirects++;
    /* Relative to the scheme only: a Host header of the user's own is kept. */
    if (found.absolute || (found.authority && header.len == 0)) {
        header.at = found.authority;
        header.len = (uint32_t)found.authority_len;
    } else if (header.len == 0) {
        header = where;
    }
    to.at = path;
    to.len = (uint32_t)found.path_len;
    if (!request_http(c, to, header, text_get(p->text, TEXT_TAIL))) {
        connection_end(l, c, OUTCOME_ERROR, REASON_LOCAL, ENOMEM);
        return 1;
    }
    if (found.authority) address_set_port(&c->target, found.port);
    close(c->fd);
    c->fd = -1;
    connection_open(l, c);
    return 1;
}

static inline void http_conclude(probe_loop *l, connection *c, uint8_t verdict, uint8_t closed) {
    uint16_t status = c->answer.http.status;
    if (verdict == HTTP_MALFORMED)
        connection_end(l, c, OUTCOME_FAILURE, closed ? REASON_CLOSED : REASON_MALFORMED, 0);
    else if (verdict == HTTP_BROKEN)
        connection_end(l, c, OUTCOME_ERROR, REASON_BODY, 0);
    else if (status < 200 || status >= 400)
        connection_end(l, c, OUTCOME_FAILURE, REASON_HTTP_STATUS, status);
    else if (status >= 300)
        connection_end(l, c, OUTCOME_WARNING, REASON_FOREIGN_REDIRECT, status);
    else
        connection_end(l, c, OUTCOME_SUCCESS, REASON_NONE, status);
}

static inline uint8_t grpc_reason(const grpc_answer *g) {
    static const uint8_t reasons[] = {REASON_NONE,      REASON_GRPC_SERVING,  REASON_GRPC_STATUS,
                                      REASON_GRPC_HTTP, REASON_GRPC_PROTOCOL, REASON_GRPC_CLOSED};
    return reasons[g->verdict];
}

/* A response after the time-out, or DEADLINE_EXCEEDED, is the command's failure; any other error of the runtime
 * says nothing about the container. */
static inline void exec_finish(probe_loop *l, connection *c) {
    const grpc_answer *g = &c->answer.grpc;
    if (g->verdict == GRPC_ANSWERED && g->detail == 0)
        connection_end(l, c, OUTCOME_SUCCESS, REASON_NONE, 0);
    else if (g->verdict == GRPC_ANSWERED)
        connection_end(l, c, OUTCOME_FAILURE, REASON_EXEC_EXIT, g->detail);
    else if ((g->verdict == GRPC_STATUS && g->detail == 4) ||
             monotonic_ns() - c->began_ns >= c->owner->timeout_ns)
        connection_end(l, c, OUTCOME_FAILURE, REASON_EXEC_TIMEOUT, 0);
    else
        connection_end(l, c, OUTCOME_ERROR, grpc_reason(g), g->detail);
}

/* Redirects are not followed. */
static inline void h2c_finish(probe_loop *l, connection *c) {
    const grpc_answer *g = &c->answer.grpc;
    if (g->verdict != GRPC_ANSWERED)
        connection_end(l, c, OUTCOME_FAILURE, grpc_reason(g), g->detail);
    else if (g->detail < 200 || g->detail >= 400)
        connection_end(l, c, OUTCOME_FAILURE, REASON_HTTP_STATUS, g->detail);
    else if (g->detail >= 300)
        connection_end(l, c, OUTCOME_WARNING, REASON_FOREIGN_REDIRECT, g->detail);
    else
        connection_end(l, c, OUTCOME_SUCCESS, REASON_NONE, g->detail);
}

static inline void grpc_finish(probe_loop *l, connection *c) {
    const grpc_answer *g = &c->answer.grpc;
    uint8_t good = g->verdict == GRPC_ANSWERED && g->detail == 1;
    if (c->owner->kind == KIND_EXEC) {
        exec_finish(l, c);
        return;
    }
    if (c->owner->kind == KIND_H2C) {
        h2c_finish(l, c);
        return;
    }
    connection_end(l, c, good ? OUTCOME_SUCCESS : OUTCOME_FAILURE, grpc_reason(g), g->detail);
}

/* Handle received bytes.  1 = the connection has ended or was replaced. */
static inline int connection_take(probe_loop *l, connection *c, size_t n) {
    size_t at = 0, used, reply_len;
    uint8_t verdict, reply[GRPC_REPLY_SIZE];
    if (c->owner->kind != KIND_HTTP) {
        grpc_answer *g = &c->answer.grpc;
        if (grpc_feed(g, l->buffer, n) != GRPC_MORE) {
            grpc_finish(l, c);
            return 1;
        }
        reply_len = grpc_reply(g, reply);
        if (reply_len) {
            /* Answer SETTINGS and PING; drop what does not fit into the socket's buffer. */
            ssize_t sent = send(c->fd, reply, reply_len, MSG_NOSIGNAL);
            (void)sent;
        }
        return 0;
    }
    do {
        verdict = http_feed(&c->answer.http, l->buffer + at, n - at, &used);
        at += used;
        if (verdict == HTTP_HEADERS && connection_redirect(l, c)) return 1;
    } while (verdict == HTTP_HEADERS);
    if (verdict == HTTP_MORE) return 0;
    http_conclude(l, c, verdict, 0);
    return 1;
}

static inline void connection_read(probe_loop *l, connection *c) {
    int rounds;
    /* A few reads only: a fast server with a long body must not keep the loop from other probes. */
    for (rounds = 0; rounds < 4; rounds++) {
        ssize_t n = recv(c->fd, l->buffer, sizeof l->buffer, 0);
        if (n > 0) {
            if (connection_take(l, c, (size_t)n)) return;
            if ((size_t)n < sizeof l->buffer) return;
            continue;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (c->owner->kind != KIND_HTTP) {
            grpc_eof(&c->answer.grpc);
            grpc_finish(l, c);
        } else {
            int error = n < 0 ? errno : 0;
            uint8_t verdict = http_eof(&c->answer.http, n < 0);
            if (verdict == HTTP_MALFORMED && error)
                connection_end(l, c, OUTCOME_FAILURE, REASON_IO, error);
            else
                http_conclude(l, c, verdict, 1);
        }
        return;
    }
}

/* Proceed as far as the socket allows; then wait for it. */
static inline void connection_progress(probe_loop *l, connection *c) {
    if (c->phase == CONNECTION_CONNECTING && c->owner->kind == KIND_TCP) {
        /* A second connect() tells how the first one ended, in one call for "connected" and "refused". */
        if (connect(c->fd, &c->target.any, address_size(&c->target)) == 0 || errno == EISCONN) {
            if (connection_met_itself(l, c))
                connection_end(l, c, OUTCOME_FAILURE, REASON_CONNECT, ECONNREFUSED);
            else
                connection_end(l, c, OUTCOME_SUCCESS, REASON_NONE, 0);
        } else if (errno != EALREADY && errno != EINPROGRESS) {
            connection_refused(l, c, errno);
        } else if (connection_watch(l, c, EPOLLOUT) < 0) {
            connection_refused(l, c, errno);
        }
        return;
    }
    while (c->phase != CONNECTION_READING) {
        ssize_t n = send(c->fd, c->request + c->sent, c->request_len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOTCONN)) {
            if (connection_watch(l, c, EPOLLOUT) < 0) connection_refused(l, c, errno);
            return;
        }
        if (n < 0) {
            if (c->phase == CONNECTION_CONNECTING || c->owner->kind == KIND_EXEC)
                connection_refused(l, c, errno);
            else
                connection_end(l, c, OUTCOME_FAILURE, REASON_IO, errno);
            return;
        }
        c->phase = CONNECTION_SENDING;
        c->sent += (uint32_t)n;
        if (c->sent < c->request_len) continue;
        c->phase = CONNECTION_READING;
        if (connection_watch(l, c, EPOLLIN) < 0) connection_refused(l, c, errno);
        return;
    }
    connection_read(l, c);
}

/* When to list the command's processes: shortly before its time-out. */
static inline uint64_t exec_slow(const probe *p) { return p->timeout_ns / 5 * 4; }

/* The runtime counts whole seconds and reports its time-out; this loop enforces fractions of a second. */
static inline uint64_t exec_patience(const probe *p) {
    return p->timeout_ns % 1000000000u ? p->timeout_ns : p->timeout_ns + EXEC_GRACE_NS;
}

/* Handle a deadline.  Time in which this thread could not run is added once. */
static inline void connection_timed_out(probe_loop *l, connection *c, uint64_t now) {
    uint64_t lag = l->lag_ns - c->lag_ns;
    probe *p = c->owner;
    if (p->kind == KIND_EXEC && !c->slow) {
        c->slow = 1;
        probe_notify(l, p, NEWS_SLOW);
        timer_arm(&l->wheel, &c->deadline, tick_of(c->began_ns + exec_patience(p)));
        return;
    }
    if (lag > 0 && !c->extended) {
        c->extended = 1;
        p->late++;
        l->late++;
        timer_arm(&l->wheel, &c->deadline, tick_of(now + (lag < p->timeout_ns ? lag : p->timeout_ns)));
        return;
    }
    if (p->kind == KIND_EXEC)
        connection_end(l, c, OUTCOME_FAILURE, REASON_EXEC_TIMEOUT, 0);
    else if (c->phase == CONNECTION_CONNECTING)
        connection_end(l, c, OUTCOME_FAILURE, REASON_TIMEOUT_CONNECT, 0);
    else if (p->kind == KIND_HTTP && c->phase == CONNECTION_READING && c->answer.http.phase >= AT_LENGTH)
        connection_end(l, c, OUTCOME_ERROR, REASON_TIMEOUT_BODY, 0);
    else
        connection_end(l, c, OUTCOME_FAILURE, REASON_TIMEOUT_RESPONSE, 0);
}

/* An unused connection, or NULL. */
static inline connection *connection_find(probe_loop *l) {
    connection *c = l->free_connections;
    if (c) {
        l->free_connections = c->next_free;
        return c;
    }
    if (l->allocated == l->limit || !(c = calloc(1, sizeof *c))) return 0;
    l->connections[l->allocated++] = c;
    c->deadline.kind = 1;
    return c;
}

/* 0 = out of memory. */
static inline int connection_allocate_buffers(connection *c, uint8_t kind) {
    if (kind == KIND_EXEC && !c->output && !(c->output = malloc(EXEC_OUTPUT_LIMIT))) return 0;
    return (kind != KIND_EXEC && kind != KIND_GRPC && kind != KIND_H2C) || c->buffers ||
           (c->buffers = malloc(sizeof *c->buffers));
}

/* Assign a connection to the probe and start.  0 = out of memory. */
static inline int connection_begin(probe_loop *l, probe *p, uint64_t now) {
    connection *c = connection_find(l);
    if (!c) return 0;
    if (!connection_allocate_buffers(c, p->kind) || !request_compose(c, p)) {
        c->next_free = l->free_connections;
        l->free_connections = c;
        return 0;
    }
    if (++l->open > l->most_open) l->most_open = l->open;
    if (p->kind == KIND_EXEC)
        l->execs++;
    else
        c->target = p->target.address;
    c->owner = p;
    c->fd = -1;
    c->redirects = c->extended = c->slow = 0;
    c->lag_ns = l->lag_ns;
    c->began_ns = now;
    p->connected = c;
    timer_arm(&l->wheel, &c->deadline, tick_of(now + (p->kind == KIND_EXEC ? exec_slow(p) : p->timeout_ns)));
    connection_open(l, c);
    return 1;
}

#endif
