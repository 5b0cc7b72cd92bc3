/* The response to one request over HTTP/2, a grpc.health.v1 Check, a CRI ExecSync or a GET: bytes in, verdict out; no
 * socket, no allocation, bounded memory whatever the server sends.  The request is one string that the caller sends,
 * with the largest windows, so window updates are never needed. */
#ifndef KUBENGINE_PROBING_GRPC_H
#define KUBENGINE_PROBING_GRPC_H

#include <stddef.h>
#include "../http2/client.h"
#include "exec.h"

#define GRPC_MESSAGE_LIMIT 256              /* of a health answer */
#define GRPC_EXEC_LIMIT (16u * 1024 * 1024) /* of an exec response, as in the kubelet's client */
#define GRPC_REPLY_SIZE 256
#define GRPC_FRAMES_LIMIT 4096 /* frames without data */
#define GRPC_TEXT_LIMIT 512
#define GRPC_BODY_ENOUGH 10240 /* of a GET's body, as of HTTP/1's */

enum grpc_call { GRPC_HEALTH = 0, GRPC_EXEC = 1, GRPC_GET = 2 };
enum grpc_verdict {
    GRPC_MORE = 0,
    GRPC_ANSWERED =
        1, /* status OK and a message, or a GET's end; detail = serving status, exit code or HTTP status */
    GRPC_STATUS = 2,   /* the call failed; detail = gRPC status code */
    GRPC_HTTP = 3,     /* not a gRPC response; detail = HTTP status */
    GRPC_PROTOCOL = 4, /* not HTTP/2, or broken */
    GRPC_CLOSED = 5 /* the stream or the connection ended before the response; detail = HTTP/2 error code */
};

/* Memory for the headers of a response; the caller provides it. */
typedef struct {
    hpack_table table;
    char scratch[HPACK_TABLE_SIZE];
} grpc_buffers;

typedef struct {
    http2 connection;
    http2_stream stream;
    uint32_t message_len;  /* announced */
    uint32_t message_read; /* prefix included */
    int32_t status;        /* last :status seen, -1 if none */
    int32_t grpc_status;   /* last grpc-status seen, -1 if none */
    int32_t detail;
    uint16_t text_len;
    uint8_t verdict, call, compressed;
    uint8_t message[GRPC_MESSAGE_LIMIT];
    char text[GRPC_TEXT_LIMIT]; /* the beginning of the last grpc-message, percent-encoded */
    exec_reader exec;
} grpc_answer;

/* `output`: of GRPC_EXEC, room for EXEC_OUTPUT_LIMIT bytes. */
static inline void grpc_reset(grpc_answer *g, uint8_t call, grpc_buffers *buffers, char *output) {
    memset(g, 0, sizeof *g);
    g->call = call;
    g->status = g->grpc_status = -1;
    exec_reset(&g->exec, output);
    http2_reset(&g->connection, &g->stream, 1, WINDOW_LIMIT, WINDOW_LIMIT, &buffers->table, buffers->scratch,
                sizeof buffers->scratch);
    g->connection.idle_limit = GRPC_FRAMES_LIMIT;
    /* The request is sent at once: account for it as if it had used the initial window of any server. */
    http2_sent(&g->connection, http2_open(&g->connection), WINDOW_DEFAULT, 1);
}

static inline uint8_t grpc_end(grpc_answer *g, uint8_t verdict, int32_t detail) {
    g->detail = detail;
    return g->verdict = verdict;
}

/* The serving status in a HealthCheckResponse, or -1 for another message. */
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

/* Handle the end of our stream. */
static inline uint8_t grpc_conclude(grpc_answer *g) {
    int32_t serving;
    if (g->call == GRPC_GET) return grpc_end(g, GRPC_ANSWERED, g->status < 0 ? 0 : g->status);
    if (g->grpc_status > 0) return grpc_end(g, GRPC_STATUS, g->grpc_status);
    if (g->status != 200) return grpc_end(g, GRPC_HTTP, g->status < 0 ? 0 : g->status);
    if (g->grpc_status < 0) return grpc_end(g, GRPC_STATUS, 13); /* no trailers: INTERNAL */
    if (g->message_read < 5 || g->message_read != g->message_len + 5 || g->compressed)
        return grpc_end(g, GRPC_STATUS, 13);
    if (g->call == GRPC_EXEC)
        return exec_whole(&g->exec) ? grpc_end(g, GRPC_ANSWERED, g->exec.exit_code)
                                    : grpc_end(g, GRPC_STATUS, 13);
    serving = grpc_serving(g->message, g->message_len);
    return serving < 0 ? grpc_end(g, GRPC_STATUS, 13) : grpc_end(g, GRPC_ANSWERED, serving);
}

/* The explanation of a failed call, or the command's output. */
static inline const char *grpc_text(const grpc_answer *g, uint32_t *len) {
    *len = 0;
    if (g->verdict == GRPC_STATUS && g->grpc_status > 0) {
        *len = g->text_len;
        return g->text;
    }
    if (g->verdict == GRPC_ANSWERED) *len = g->exec.output_len;
    return g->exec.output;
}

static inline uint8_t grpc_message(grpc_answer *g, const uint8_t *data, size_t n) {
    uint32_t limit = g->call == GRPC_EXEC ? GRPC_EXEC_LIMIT : GRPC_MESSAGE_LIMIT;
    if (g->call == GRPC_GET) {
        g->message_read += (uint32_t)n;
        return g->message_read >= GRPC_BODY_ENOUGH ? grpc_conclude(g) : GRPC_MORE;
    }
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

/* A header's value as a decimal number of at most 6 digits, or -1. */
static inline int32_t grpc_number(const hpack_field *f) {
    int32_t number = 0;
    uint32_t i;
    if (f->value_len == 0 || f->value_len > 6) return -1;
    for (i = 0; i < f->value_len; i++) {
        if (f->value[i] < '0' || f->value[i] > '9') return -1;
        number = number * 10 + (f->value[i] - '0');
    }
    return number;
}

static inline int grpc_named(const hpack_field *f, const char *name) {
    return f->name_len == strlen(name) && memcmp(f->name, name, f->name_len) == 0;
}

static inline void grpc_field(grpc_answer *g, const hpack_field *f) {
    int32_t number = grpc_number(f);
    if (grpc_named(f, ":status")) {
        g->status = number < 0 ? 0 : number;
    } else if (grpc_named(f, "grpc-status")) {
        g->grpc_status = number < 0 ? 2 : number; /* unreadable = UNKNOWN */
    } else if (grpc_named(f, "grpc-message")) {
        g->text_len = (uint16_t)(f->value_len < GRPC_TEXT_LIMIT ? f->value_len : GRPC_TEXT_LIMIT);
        memcpy(g->text, f->value, g->text_len);
    }
}

static inline uint8_t grpc_heed(grpc_answer *g, const http2_event *e) {
    switch (e->kind) {
    case HTTP2_FIELD: grpc_field(g, e->field); return GRPC_MORE;
    case HTTP2_DATA: return grpc_message(g, e->data, e->size);
    case HTTP2_END: return grpc_conclude(g);
    case HTTP2_RESET: return grpc_end(g, GRPC_CLOSED, (int32_t)(e->code & 0x7fffffff));
    case HTTP2_GOAWAY:
        /* A graceful GOAWAY lets the stream end by itself. */
        return e->code & 0x7fffffff ? grpc_end(g, GRPC_CLOSED, (int32_t)(e->code & 0x7fffffff)) : GRPC_MORE;
    case HTTP2_BROKEN: return grpc_end(g, GRPC_PROTOCOL, 0);
    default: return GRPC_MORE;
    }
}

static inline uint8_t grpc_feed(grpc_answer *g, const uint8_t *data, size_t n) {
    http2_event event;
    size_t used;
    while (g->verdict == GRPC_MORE) {
        if (http2_receive(&g->connection, data, n, &used, &event) == HTTP2_MORE) break;
        data += used;
        n -= used;
        grpc_heed(g, &event);
    }
    return g->verdict;
}

/* The frames that the server waits for, as far as they fit; called once. */
static inline size_t grpc_reply(grpc_answer *g, uint8_t reply[GRPC_REPLY_SIZE]) {
    return http2_write_answers(&g->connection, reply, GRPC_REPLY_SIZE);
}

static inline uint8_t grpc_eof(grpc_answer *g) {
    return g->verdict == GRPC_MORE ? grpc_end(g, GRPC_CLOSED, 0) : g->verdict;
}

#endif
