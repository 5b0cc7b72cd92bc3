/* The answer to one unary gRPC call over cleartext HTTP/2, a grpc.health.v1 Check or a CRI ExecSync: bytes in,
 * verdict out; no socket, no allocation, bounded memory whatever the server sends.  The request is one string
 * that the caller sends; what must be answered while waiting (SETTINGS, PING) is collected in `reply`. */
#ifndef KUBENGINE_PROBING_GRPC_H
#define KUBENGINE_PROBING_GRPC_H

#include <stddef.h>
#include "exec.h"
#include "hpack.h"

#define GRPC_FRAME_LIMIT 16384
#define GRPC_MESSAGE_LIMIT 256              /* of a health answer */
#define GRPC_EXEC_LIMIT (16u * 1024 * 1024) /* of an exec's, as the kubelet's client has it */
#define GRPC_REPLY_SIZE 256
#define GRPC_FRAMES_LIMIT 4096 /* that bring no data */

enum grpc_call { GRPC_HEALTH = 0, GRPC_EXEC = 1 };
enum grpc_verdict {
    GRPC_MORE = 0,
    GRPC_ANSWERED = 1, /* status OK and a message; detail = its serving status or exit code */
    GRPC_STATUS = 2,   /* the call failed; detail = gRPC status code */
    GRPC_HTTP = 3,     /* not a gRPC answer; detail = HTTP status */
    GRPC_PROTOCOL = 4, /* not HTTP/2, or broken */
    GRPC_CLOSED = 5    /* the stream or the connection ended before the answer; detail = HTTP/2 error code */
};

enum {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RST = 3,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6,
    FRAME_GOAWAY = 7,
    FRAME_CONTINUATION = 9
};
enum { FLAG_ACK = 1, FLAG_END_STREAM = 1, FLAG_END_HEADERS = 4, FLAG_PADDED = 8, FLAG_PRIORITY = 32 };

typedef struct {
    uint32_t length;       /* of the frame's payload that is left */
    uint32_t at;           /* read of its payload */
    uint32_t frames;       /* that brought no data */
    uint32_t message_len;  /* announced */
    uint32_t message_read; /* prefix included */
    int32_t detail;
    uint16_t reply_len;
    uint8_t verdict;
    uint8_t call;
    uint8_t head_len;
    uint8_t type, flags, ours, padding, skip, in_block, ends, compressed, settled;
    uint8_t head[9];
    uint8_t small[8]; /* first bytes of RST_STREAM, PING and GOAWAY */
    uint8_t reply[GRPC_REPLY_SIZE];
    uint8_t message[GRPC_MESSAGE_LIMIT];
    exec_reader exec;
    hpack headers;
} grpc_answer;

/* `output`: of GRPC_EXEC, room for EXEC_OUTPUT_LIMIT bytes. */
static inline void grpc_reset(grpc_answer *g, uint8_t call, char *output) {
    memset(g, 0, offsetof(grpc_answer, message));
    g->call = call;
    exec_reset(&g->exec, output);
    hpack_reset(&g->headers);
}

static inline uint8_t grpc_end(grpc_answer *g, uint8_t verdict, int32_t detail) {
    g->detail = detail;
    return g->verdict = verdict;
}

/* The serving status in a HealthCheckResponse, or -1 where the message is none. */
static inline int32_t grpc_serving(const uint8_t *m, uint32_t n) {
    int32_t serving = 0;
    uint32_t i = 0;
    while (i < n) {
        uint64_t key = 0, value = 0;
        int shift, wire;
        for (shift = 0; i < n && shift < 64; shift += 7) {
            key |= (uint64_t)(m[i] & 0x7f) << shift;
            if (!(m[i++] & 0x80)) break;
            if (i == n || shift == 63) return -1;
        }
        wire = (int)(key & 7);
        if (key >> 3 == 0) return -1;
        if (wire == 0 || wire == 2) {
            if (i == n) return -1;
            for (shift = 0; i < n && shift < 64; shift += 7) {
                value |= (uint64_t)(m[i] & 0x7f) << shift;
                if (!(m[i++] & 0x80)) break;
                if (i == n || shift == 63) return -1;
            }
            if (wire == 2 && value > n - i) return -1;
            if (wire == 2)
                i += (uint32_t)value;
            else if (key >> 3 == 1)
                serving = (int32_t)(value & 0x7fffffff);
        } else if (wire == 1 || wire == 5) {
            uint32_t size = wire == 1 ? 8 : 4;
            if (n - i < size) return -1;
            i += size;
        } else {
            return -1;
        }
    }
    return serving;
}

/* Our stream ended after `headers` were all read. */
static inline uint8_t grpc_conclude(grpc_answer *g) {
    const hpack *h = &g->headers;
    int32_t serving;
    if (h->grpc_status > 0) return grpc_end(g, GRPC_STATUS, h->grpc_status);
    if (h->status != 200) return grpc_end(g, GRPC_HTTP, h->status < 0 ? 0 : h->status);
    if (h->grpc_status < 0) return grpc_end(g, GRPC_STATUS, 13); /* no trailers: INTERNAL */
    if (g->message_read < 5 || g->message_read != g->message_len + 5 || g->compressed)
        return grpc_end(g, GRPC_STATUS, 13);
    if (g->call == GRPC_EXEC)
        return exec_whole(&g->exec) ? grpc_end(g, GRPC_ANSWERED, g->exec.exit_code)
                                    : grpc_end(g, GRPC_STATUS, 13);
    serving = grpc_serving(g->message, g->message_len);
    return serving < 0 ? grpc_end(g, GRPC_STATUS, 13) : grpc_end(g, GRPC_ANSWERED, serving);
}

/* What the call's failure is explained with, or what the command wrote. */
static inline const char *grpc_text(const grpc_answer *g, uint32_t *len) {
    *len = 0;
    if (g->verdict == GRPC_STATUS && g->headers.grpc_status > 0) {
        *len = g->headers.text_len;
        return g->headers.text;
    }
    if (g->verdict == GRPC_ANSWERED) *len = g->exec.output_len;
    return g->exec.output;
}

static inline uint8_t grpc_message(grpc_answer *g, const uint8_t *data, size_t n) {
    uint32_t limit = g->call == GRPC_EXEC ? GRPC_EXEC_LIMIT : GRPC_MESSAGE_LIMIT;
    for (; n > 0 && g->message_read < 5; g->message_read++, data++, n--) {
        if (g->message_read == 0)
            g->compressed = *data;
        else
            g->message_len = g->message_len << 8 | *data;
    }
    if (g->message_read < 5) return GRPC_MORE;
    if (g->message_len > limit)
        return g->call == GRPC_EXEC ? grpc_end(g, GRPC_STATUS, 8) : grpc_end(g, GRPC_PROTOCOL, 0);
    if (n > g->message_len - (g->message_read - 5)) return grpc_end(g, GRPC_STATUS, 13);
    if (g->call == GRPC_EXEC)
        exec_feed(&g->exec, data, n);
    else
        memcpy(g->message + (g->message_read - 5), data, n);
    g->message_read += (uint32_t)n;
    return GRPC_MORE;
}

static inline void grpc_reply(grpc_answer *g, uint8_t type, const uint8_t *payload, uint8_t n) {
    uint8_t head[9] = {0, 0, n, type, FLAG_ACK, 0, 0, 0, 0};
    if (g->reply_len + 9u + n > GRPC_REPLY_SIZE) return; /* a flood: it may wait */
    memcpy(g->reply + g->reply_len, head, 9);
    memcpy(g->reply + g->reply_len + 9, payload, n);
    g->reply_len = (uint16_t)(g->reply_len + 9 + n);
}

static inline uint8_t grpc_begin_frame(grpc_answer *g) {
    const uint8_t *head = g->head;
    uint32_t stream =
        (uint32_t)(head[5] & 0x7f) << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
    g->length = (uint32_t)head[0] << 16 | (uint32_t)head[1] << 8 | head[2];
    g->type = head[3];
    g->flags = head[4];
    g->ours = stream == 1;
    g->at = 0;
    g->padding = 0;
    g->skip = 0;
    if (g->type != FRAME_DATA || g->length == 0) g->frames++;
    if (g->length > GRPC_FRAME_LIMIT || g->frames > GRPC_FRAMES_LIMIT) return grpc_end(g, GRPC_PROTOCOL, 0);
    if (!g->settled && (g->type != FRAME_SETTINGS || (g->flags & FLAG_ACK)))
        return grpc_end(g, GRPC_PROTOCOL, 0);
    g->settled = 1;
    if (g->in_block != (g->type == FRAME_CONTINUATION) || (g->in_block && !g->ours))
        return grpc_end(g, GRPC_PROTOCOL, 0);
    switch (g->type) {
    case FRAME_HEADERS:
        if (!g->ours) return grpc_end(g, GRPC_PROTOCOL, 0);
        g->ends = g->flags & FLAG_END_STREAM;
        g->in_block = 1;
        g->skip = (uint8_t)((g->flags & FLAG_PADDED ? 1 : 0) + (g->flags & FLAG_PRIORITY ? 5 : 0));
        break;
    case FRAME_DATA:
        if (!g->ours || g->headers.status < 0) return grpc_end(g, GRPC_PROTOCOL, 0);
        g->skip = g->flags & FLAG_PADDED ? 1 : 0;
        break;
    case FRAME_RST:
        if (g->length != 4 || !g->ours) return grpc_end(g, GRPC_PROTOCOL, 0);
        break;
    case FRAME_PING:
        if (g->length != 8 || stream != 0) return grpc_end(g, GRPC_PROTOCOL, 0);
        break;
    case FRAME_GOAWAY:
        if (g->length < 8 || stream != 0) return grpc_end(g, GRPC_PROTOCOL, 0);
        break;
    case FRAME_SETTINGS:
        if (g->length % 6 != 0 || stream != 0 || ((g->flags & FLAG_ACK) && g->length))
            return grpc_end(g, GRPC_PROTOCOL, 0);
        break;
    default: break;
    }
    if (g->skip > g->length) return grpc_end(g, GRPC_PROTOCOL, 0);
    return GRPC_MORE;
}

static inline uint8_t grpc_payload_byte(grpc_answer *g, uint8_t c) {
    uint32_t at = g->at++;
    g->length--;
    if (at == 0 && g->skip && (g->flags & FLAG_PADDED)) {
        g->padding = c;
        return g->padding > g->length - (g->skip - 1u) ? grpc_end(g, GRPC_PROTOCOL, 0) : GRPC_MORE;
    }
    if (at < g->skip || g->length < g->padding) return GRPC_MORE;
    switch (g->type) {
    case FRAME_HEADERS:
    case FRAME_CONTINUATION: return hpack_byte(&g->headers, c) ? GRPC_MORE : grpc_end(g, GRPC_PROTOCOL, 0);
    case FRAME_RST:
    case FRAME_PING:
    case FRAME_GOAWAY:
        if (at < 8) g->small[at] = c;
        return GRPC_MORE;
    default: return GRPC_MORE;
    }
}

static inline int32_t grpc_code(const uint8_t *p) {
    return (int32_t)(((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]) & 0x7fffffff);
}

static inline uint8_t grpc_end_frame(grpc_answer *g) {
    switch (g->type) {
    case FRAME_SETTINGS:
        if (!(g->flags & FLAG_ACK)) grpc_reply(g, FRAME_SETTINGS, g->small, 0);
        return GRPC_MORE;
    case FRAME_PING:
        if (!(g->flags & FLAG_ACK)) grpc_reply(g, FRAME_PING, g->small, 8);
        return GRPC_MORE;
    case FRAME_RST: return grpc_end(g, GRPC_CLOSED, grpc_code(g->small));
    case FRAME_GOAWAY:
        /* A polite one leaves the stream to end by itself. */
        return grpc_code(g->small + 4) ? grpc_end(g, GRPC_CLOSED, grpc_code(g->small + 4)) : GRPC_MORE;
    case FRAME_DATA: return g->flags & FLAG_END_STREAM ? grpc_conclude(g) : GRPC_MORE;
    case FRAME_HEADERS:
    case FRAME_CONTINUATION:
        if (!(g->flags & FLAG_END_HEADERS)) return GRPC_MORE;
        g->in_block = 0;
        if (!hpack_end_block(&g->headers)) return grpc_end(g, GRPC_PROTOCOL, 0);
        return g->ends ? grpc_conclude(g) : GRPC_MORE;
    default: return GRPC_MORE;
    }
}

/* Payload, as much of it as there is.  Returns how many bytes were taken. */
static inline size_t grpc_payload(grpc_answer *g, const uint8_t *data, size_t n) {
    size_t take;
    if (g->type != FRAME_DATA || g->at < g->skip || g->length <= g->padding) {
        grpc_payload_byte(g, *data);
        return 1;
    }
    take = g->length - g->padding;
    if (take > n) take = n;
    g->at += (uint32_t)take;
    g->length -= (uint32_t)take;
    grpc_message(g, data, take);
    return take;
}

static inline uint8_t grpc_feed(grpc_answer *g, const uint8_t *data, size_t n) {
    size_t i = 0;
    while (i < n && g->verdict == GRPC_MORE) {
        if (g->head_len < 9) {
            g->head[g->head_len++] = data[i++];
            if (g->head_len < 9 || grpc_begin_frame(g) != GRPC_MORE) continue;
        } else {
            i += grpc_payload(g, data + i, n - i);
        }
        if (g->length == 0 && g->verdict == GRPC_MORE) {
            g->head_len = 0;
            grpc_end_frame(g);
        }
    }
    return g->verdict;
}

static inline uint8_t grpc_eof(grpc_answer *g) {
    return g->verdict == GRPC_MORE ? grpc_end(g, GRPC_CLOSED, 0) : g->verdict;
}

#endif
