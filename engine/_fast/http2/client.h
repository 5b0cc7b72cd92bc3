/* The client's side of one HTTP/2 connection (RFC 9113): bytes in, events out; no socket, no clock, no
 * allocation.  Every table and buffer has a bound, whatever the server sends: streams are in the caller's array,
 * texts in the caller's buffer, and frames that need a reply (SETTINGS, PING, windows) are counted, not stored, until
 * the caller fetches the replies.  A malformed stream breaks the connection, as the standard allows. */
#ifndef KUBENGINE_HTTP2_CLIENT_H
#define KUBENGINE_HTTP2_CLIENT_H

#include "frames.h"
#include "hpack.h"

#define HTTP2_PINGS 8 /* to answer at once; further ones of a flood are dropped */

typedef struct {
    uint32_t id;
    int32_t send_window;
    int32_t receive_window; /* what the server may still send */
    uint32_t taken;         /* received, and not yet returned to the server's window */
    uint8_t headed;         /* its response has begun */
    uint8_t sent;           /* our side has ended */
    uint8_t ended;          /* the server's side has ended */
} http2_stream;

enum http2_kind {
    HTTP2_MORE = 0,
    HTTP2_FIELD,  /* of the header block being read: `field` */
    HTTP2_HEAD,   /* the header block has ended */
    HTTP2_DATA,   /* `data`, `size`; to be acknowledged with http2_take */
    HTTP2_END,    /* the server's side has ended */
    HTTP2_RESET,  /* the server ended the stream; `code` */
    HTTP2_GOAWAY, /* streams above `last` will not be answered; `code` */
    HTTP2_SETTINGS,
    HTTP2_WINDOW, /* more may be sent on `stream`, 0 = on any */
    HTTP2_PONG,
    HTTP2_BROKEN /* the connection cannot be used any longer; `code` */
};

typedef struct {
    uint8_t kind;
    uint32_t stream, code, last;
    const hpack_field *field;
    const uint8_t *data;
    size_t size;
} http2_event;

typedef struct {
    hpack headers;
    http2_stream *streams; /* those that are open, by id */
    uint32_t capacity, open, next_id;
    uint32_t length; /* bytes left of the frame's payload */
    uint32_t at;     /* read of its payload */
    uint32_t stream; /* the frame's */
    uint32_t block_stream, list_size, list_limit;
    uint32_t idle, idle_limit; /* frames without data since http2_calm; 0 = no limit */
    uint32_t most_streams, most_frame, initial_window;
    int32_t send_window, receive_window;
    uint32_t stream_window, connection_window; /* ours */
    uint32_t taken, settings_to_answer;
    uint32_t code, last;
    uint8_t head_len, type, flags, padding, skip;
    uint8_t settled, in_block, block_ends, end_waits, windows_wait, going_away, broken, pings;
    uint8_t head[FRAME_HEAD];
    uint8_t small[8]; /* last bytes read of a frame without text */
    uint8_t ping[HTTP2_PINGS][8];
} http2;

/* `stream_window` and `connection_window` are what the caller announces to the server (http2_write_preface). */
static inline void http2_reset(http2 *h, http2_stream *streams, uint32_t capacity, uint32_t stream_window,
                               uint32_t connection_window, hpack_table *table, char *scratch, uint32_t room) {
    memset(h, 0, sizeof *h);
    hpack_reset(&h->headers, table, scratch, room);
    h->streams = streams;
    h->capacity = capacity;
    h->next_id = 1;
    h->most_streams = UINT32_MAX;
    h->most_frame = FRAME_LIMIT;
    h->initial_window = WINDOW_DEFAULT;
    h->send_window = WINDOW_DEFAULT;
    h->stream_window = stream_window;
    h->connection_window = connection_window;
    h->receive_window = (int32_t)connection_window;
}

/* Restart the count of frames.  The owner of a long-lived connection calls it regularly. */
static inline void http2_calm(http2 *h) { h->idle = 0; }

/* Streams */

/* The index of a stream, or where to insert it. */
static inline uint32_t http2_place(const http2 *h, uint32_t id) {
    uint32_t low = 0, high = h->open;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (h->streams[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static inline http2_stream *http2_find(const http2 *h, uint32_t id) {
    uint32_t place = http2_place(h, id);
    return place < h->open && h->streams[place].id == id ? &h->streams[place] : 0;
}

static inline int http2_was_opened(const http2 *h, uint32_t id) { return (id & 1) && id < h->next_id; }

/* Whether further streams can open, now or after others have ended. */
static inline int http2_usable(const http2 *h) {
    return !h->broken && !h->going_away && h->next_id <= STREAM_LIMIT;
}

/* The number of streams that can open now. */
static inline uint32_t http2_streams_left(const http2 *h) {
    uint32_t most = h->most_streams < h->capacity ? h->most_streams : h->capacity;
    return http2_usable(h) && h->open < most ? most - h->open : 0;
}

/* Open a stream; the caller has checked that there is space for it. */
static inline http2_stream *http2_open(http2 *h) {
    http2_stream *s = &h->streams[h->open++];
    memset(s, 0, sizeof *s);
    s->id = h->next_id;
    s->send_window = (int32_t)h->initial_window;
    s->receive_window = (int32_t)h->stream_window;
    h->next_id += 2;
    return s;
}

/* Drop a stream; whatever the server still sends on it is discarded. */
static inline void http2_remove_stream(http2 *h, uint32_t id) {
    uint32_t place = http2_place(h, id);
    if (place == h->open || h->streams[place].id != id) return;
    h->open--;
    memmove(h->streams + place, h->streams + place + 1, (h->open - place) * sizeof *h->streams);
}

/* The number of bytes of data that one frame can carry now. */
static inline uint32_t http2_sendable(const http2 *h, const http2_stream *s) {
    int32_t window = s->send_window < h->send_window ? s->send_window : h->send_window;
    if (window <= 0) return 0;
    return (uint32_t)window < h->most_frame ? (uint32_t)window : h->most_frame;
}

/* Account for `size` bytes of data being sent; `ends` marks the stream's last bytes. */
static inline void http2_sent(http2 *h, http2_stream *s, uint32_t size, int ends) {
    s->send_window -= (int32_t)size;
    h->send_window -= (int32_t)size;
    if (ends) s->sent = 1;
    if (s->sent && s->ended) http2_remove_stream(h, s->id);
}

/* Account for `size` bytes of a stream's data that were read: the server may send as many again. */
static inline void http2_take(http2 *h, uint32_t id, uint32_t size) {
    http2_stream *s = http2_find(h, id);
    h->taken += size;
    if (!s || s->ended) return;
    s->taken += size;
    if (s->taken >= h->stream_window / 2) h->windows_wait = 1;
}

/* Sending */

#define HTTP2_PREFACE_SIZE (sizeof HTTP2_PREFACE - 1 + FRAME_HEAD + 18 + FRAME_HEAD + 4)

static inline size_t http2_write_preface(const http2 *h, uint8_t out[HTTP2_PREFACE_SIZE]) {
    uint8_t *at = out + sizeof HTTP2_PREFACE - 1;
    uint32_t settings = h->list_limit ? 18 : 12;
    memcpy(out, HTTP2_PREFACE, sizeof HTTP2_PREFACE - 1);
    at = frame_write_head(at, settings, FRAME_SETTINGS, 0, 0);
    at = frame_write_setting(at, SETTING_ENABLE_PUSH, 0);
    at = frame_write_setting(at, SETTING_INITIAL_WINDOW_SIZE, h->stream_window);
    if (h->list_limit) at = frame_write_setting(at, SETTING_MAX_HEADER_LIST_SIZE, h->list_limit);
    if (h->connection_window > WINDOW_DEFAULT)
        at = frame_write_one(at, FRAME_WINDOW_UPDATE, 0, h->connection_window - WINDOW_DEFAULT);
    return (size_t)(at - out);
}

/* Write frames that the server waits for, as many as fit.  Returns their size. */
static inline size_t http2_write_answers(http2 *h, uint8_t *out, size_t room) {
    uint8_t *at = out, *end = out + room, i;
    uint32_t stream;
    for (; h->settings_to_answer && end - at >= FRAME_HEAD; h->settings_to_answer--)
        at = frame_write_head(at, 0, FRAME_SETTINGS, FLAG_ACK, 0);
    for (i = 0; i < h->pings && end - at >= FRAME_HEAD + 8; i++) {
        at = frame_write_head(at, 8, FRAME_PING, FLAG_ACK, 0);
        memcpy(at, h->ping[i], 8);
        at += 8;
    }
    memmove(h->ping, h->ping + i, (size_t)(h->pings - i) * 8);
    h->pings = (uint8_t)(h->pings - i);
    if (h->taken >= h->connection_window / 2 && h->taken && end - at >= FRAME_HEAD + 4) {
        at = frame_write_one(at, FRAME_WINDOW_UPDATE, 0, h->taken);
        h->receive_window += (int32_t)h->taken;
        h->taken = 0;
    }
    for (stream = 0; h->windows_wait && stream < h->open; stream++) {
        http2_stream *s = &h->streams[stream];
        if (s->ended || s->taken == 0 || s->taken < h->stream_window / 2) continue;
        if (end - at < FRAME_HEAD + 4) return (size_t)(at - out);
        at = frame_write_one(at, FRAME_WINDOW_UPDATE, s->id, s->taken);
        s->receive_window += (int32_t)s->taken;
        s->taken = 0;
    }
    h->windows_wait = 0;
    return (size_t)(at - out);
}

/* Receiving */

static inline uint8_t http2_broken(http2 *h, uint32_t code) {
    h->broken = 1;
    h->code = code;
    return HTTP2_BROKEN;
}

/* Check the frame's size and stream; returns 0 or the error code. */
static inline uint32_t http2_misfit(const http2 *h) {
    int known = http2_was_opened(h, h->stream);
    if (h->length > FRAME_LIMIT) return HTTP2_FRAME_SIZE_ERROR;
    if (!h->settled && (h->type != FRAME_SETTINGS || (h->flags & FLAG_ACK))) return HTTP2_PROTOCOL_ERROR;
    if (h->in_block != (h->type == FRAME_CONTINUATION)) return HTTP2_PROTOCOL_ERROR;
    if (h->in_block && h->stream != h->block_stream) return HTTP2_PROTOCOL_ERROR;
    switch (h->type) {
    case FRAME_DATA:
    case FRAME_HEADERS: return known ? HTTP2_NO_ERROR : HTTP2_PROTOCOL_ERROR;
    case FRAME_PRIORITY:
        if (h->stream == 0) return HTTP2_PROTOCOL_ERROR;
        return h->length == 5 ? HTTP2_NO_ERROR : HTTP2_FRAME_SIZE_ERROR;
    case FRAME_RST_STREAM:
        if (!known) return HTTP2_PROTOCOL_ERROR;
        return h->length == 4 ? HTTP2_NO_ERROR : HTTP2_FRAME_SIZE_ERROR;
    case FRAME_SETTINGS:
        if (h->stream != 0) return HTTP2_PROTOCOL_ERROR;
        return h->length % 6 || ((h->flags & FLAG_ACK) && h->length) ? HTTP2_FRAME_SIZE_ERROR
                                                                     : HTTP2_NO_ERROR;
    case FRAME_PUSH_PROMISE: return HTTP2_PROTOCOL_ERROR;
    case FRAME_PING:
        if (h->stream != 0) return HTTP2_PROTOCOL_ERROR;
        return h->length == 8 ? HTTP2_NO_ERROR : HTTP2_FRAME_SIZE_ERROR;
    case FRAME_GOAWAY:
        if (h->stream != 0) return HTTP2_PROTOCOL_ERROR;
        return h->length >= 8 ? HTTP2_NO_ERROR : HTTP2_FRAME_SIZE_ERROR;
    case FRAME_WINDOW_UPDATE:
        if (h->stream != 0 && !known) return HTTP2_PROTOCOL_ERROR;
        return h->length == 4 ? HTTP2_NO_ERROR : HTTP2_FRAME_SIZE_ERROR;
    default: return HTTP2_NO_ERROR;
    }
}

static inline uint8_t http2_begin_frame(http2 *h) {
    http2_stream *s;
    uint32_t error;
    h->length = frame_read_number(h->head) >> 8;
    h->type = h->head[3];
    h->flags = h->head[4];
    h->stream = frame_read_number(h->head + 5) & STREAM_LIMIT;
    h->at = h->padding = h->skip = 0;
    if (h->type != FRAME_DATA || h->length == 0 || !http2_find(h, h->stream)) h->idle++;
    if (h->idle_limit && h->idle > h->idle_limit) return http2_broken(h, HTTP2_ENHANCE_YOUR_CALM);
    if ((error = http2_misfit(h)) != HTTP2_NO_ERROR) return http2_broken(h, error);
    h->settled = 1;
    if (h->type != FRAME_DATA && h->type != FRAME_HEADERS) return HTTP2_MORE;
    h->skip = h->flags & FLAG_PADDED ? 1 : 0;
    s = http2_find(h, h->stream);
    if (s && s->ended) return http2_broken(h, HTTP2_STREAM_CLOSED);
    if (h->type == FRAME_HEADERS) {
        h->skip = (uint8_t)(h->skip + (h->flags & FLAG_PRIORITY ? 5 : 0));
        h->in_block = 1;
        h->block_stream = h->stream;
        h->block_ends = h->flags & FLAG_END_STREAM;
        h->list_size = 0;
    } else {
        if (s && !s->headed) return http2_broken(h, HTTP2_PROTOCOL_ERROR);
        if ((int32_t)h->length > h->receive_window) return http2_broken(h, HTTP2_FLOW_CONTROL_ERROR);
        h->receive_window -= (int32_t)h->length;
        if (s) {
            if ((int32_t)h->length > s->receive_window) return http2_broken(h, HTTP2_FLOW_CONTROL_ERROR);
            s->receive_window -= (int32_t)h->length;
        }
    }
    if (h->skip > h->length) return http2_broken(h, HTTP2_PROTOCOL_ERROR);
    return HTTP2_MORE;
}

static inline uint8_t http2_apply_setting(http2 *h) {
    uint32_t value = frame_read_number(h->small + 2), i;
    switch (h->small[0] << 8 | h->small[1]) {
    case SETTING_ENABLE_PUSH: return value > 1 ? http2_broken(h, HTTP2_PROTOCOL_ERROR) : HTTP2_MORE;
    case SETTING_MAX_CONCURRENT_STREAMS: h->most_streams = value; return HTTP2_MORE;
    case SETTING_INITIAL_WINDOW_SIZE:
        if (value > WINDOW_LIMIT) return http2_broken(h, HTTP2_FLOW_CONTROL_ERROR);
        for (i = 0; i < h->open; i++) {
            int64_t window = (int64_t)h->streams[i].send_window + value - h->initial_window;
            if (window > WINDOW_LIMIT) return http2_broken(h, HTTP2_FLOW_CONTROL_ERROR);
            h->streams[i].send_window = (int32_t)window;
        }
        h->initial_window = value;
        return HTTP2_MORE;
    case SETTING_MAX_FRAME_SIZE:
        if (value < FRAME_LIMIT || value > 0xffffff) return http2_broken(h, HTTP2_PROTOCOL_ERROR);
        h->most_frame = value;
        return HTTP2_MORE;
    default: return HTTP2_MORE;
    }
}

static inline uint8_t http2_widen(http2 *h, http2_event *e) {
    uint32_t more = frame_read_number(h->small) & WINDOW_LIMIT;
    http2_stream *s = http2_find(h, h->stream);
    int32_t *window = h->stream == 0 ? &h->send_window : s ? &s->send_window : 0;
    if (more == 0) return http2_broken(h, HTTP2_PROTOCOL_ERROR);
    if (!window) return HTTP2_MORE;
    if ((int64_t)*window + more > WINDOW_LIMIT) return http2_broken(h, HTTP2_FLOW_CONTROL_ERROR);
    *window += (int32_t)more;
    e->stream = h->stream;
    return HTTP2_WINDOW;
}

/* Handle the end of the stream's last frame. */
static inline uint8_t http2_end_stream(http2 *h, http2_event *e) {
    http2_stream *s = http2_find(h, h->stream);
    h->end_waits = 0;
    if (!s) return HTTP2_MORE;
    s->ended = 1;
    e->stream = h->stream;
    if (s->sent) http2_remove_stream(h, s->id);
    return HTTP2_END;
}

static inline uint8_t http2_end_frame(http2 *h, http2_event *e) {
    http2_stream *s;
    switch (h->type) {
    case FRAME_DATA: h->end_waits = h->flags & FLAG_END_STREAM; return HTTP2_MORE;
    case FRAME_HEADERS:
    case FRAME_CONTINUATION:
        if (!(h->flags & FLAG_END_HEADERS)) return HTTP2_MORE;
        h->in_block = 0;
        if (!hpack_end_block(&h->headers)) return http2_broken(h, HTTP2_COMPRESSION_ERROR);
        if (!(s = http2_find(h, h->stream))) return HTTP2_MORE;
        s->headed = 1;
        h->end_waits = h->block_ends;
        e->stream = h->stream;
        return HTTP2_HEAD;
    case FRAME_RST_STREAM:
        if (!http2_find(h, h->stream)) return HTTP2_MORE;
        http2_remove_stream(h, h->stream);
        e->stream = h->stream;
        e->code = frame_read_number(h->small);
        return HTTP2_RESET;
    case FRAME_SETTINGS:
        if (h->flags & FLAG_ACK) return HTTP2_MORE;
        h->settings_to_answer++;
        return HTTP2_SETTINGS;
    case FRAME_PING:
        if (h->flags & FLAG_ACK) return HTTP2_PONG;
        if (h->pings < HTTP2_PINGS) memcpy(h->ping[h->pings++], h->small, 8);
        return HTTP2_MORE;
    case FRAME_GOAWAY:
        h->going_away = 1;
        e->last = frame_read_number(h->small) & STREAM_LIMIT;
        e->code = frame_read_number(h->small + 4);
        return HTTP2_GOAWAY;
    case FRAME_WINDOW_UPDATE: return http2_widen(h, e);
    default: return HTTP2_MORE;
    }
}

/* Read one byte of the padding length, or of the fields before a header block. */
static inline uint8_t http2_prelude(http2 *h, uint8_t c) {
    if (h->at == 0 && (h->flags & FLAG_PADDED)) {
        h->padding = c;
        if (h->padding > h->length - h->skip) return http2_broken(h, HTTP2_PROTOCOL_ERROR);
    }
    h->at++;
    h->length--;
    return HTTP2_MORE;
}

static inline uint8_t http2_pad(http2 *h) {
    h->length--;
    h->padding--;
    return HTTP2_MORE;
}

static inline uint8_t http2_block(http2 *h, const uint8_t *data, size_t n, size_t *used, http2_event *e) {
    int known = http2_find(h, h->block_stream) != 0;
    size_t i = 0;
    uint8_t kind = HTTP2_MORE;
    while (i < n && kind == HTTP2_MORE) {
        const hpack_field *field = &h->headers.field;
        int verdict = hpack_byte(&h->headers, data[i++]);
        if (verdict == HPACK_TAKEN) continue;
        if (verdict == HPACK_REFUSED) {
            kind = http2_broken(h, HTTP2_COMPRESSION_ERROR);
            break;
        }
        h->list_size += field->name_len + field->value_len + HPACK_ENTRY_OVERHEAD;
        if (h->list_limit && h->list_size > h->list_limit) {
            kind = http2_broken(h, HTTP2_ENHANCE_YOUR_CALM);
            break;
        }
        if (!known) continue;
        e->stream = h->block_stream;
        e->field = field;
        kind = HTTP2_FIELD;
    }
    *used = i;
    return kind;
}

/* Read a part of the frame's payload. */
static inline uint8_t http2_payload(http2 *h, const uint8_t *data, size_t n, size_t *used, http2_event *e) {
    uint8_t kind = HTTP2_MORE;
    *used = 1;
    if (h->at < h->skip || h->length == h->padding) {
        if (h->type == FRAME_DATA) http2_take(h, h->stream, 1);
        return h->at < h->skip ? http2_prelude(h, *data) : http2_pad(h);
    }
    if (n > h->length - h->padding) n = h->length - h->padding;
    switch (h->type) {
    case FRAME_DATA:
        *used = n;
        if (http2_find(h, h->stream)) {
            e->stream = h->stream;
            e->data = data;
            e->size = n;
            kind = HTTP2_DATA;
        } else {
            http2_take(h, h->stream, (uint32_t)n);
        }
        break;
    case FRAME_HEADERS:
    case FRAME_CONTINUATION: kind = http2_block(h, data, n, used, e); break;
    case FRAME_SETTINGS:
        h->small[h->at % 6] = *data;
        if (h->at % 6 == 5) kind = http2_apply_setting(h);
        break;
    default:
        if (h->at < sizeof h->small) h->small[h->at] = *data;
        break;
    }
    h->at += (uint32_t)*used;
    h->length -= (uint32_t)*used;
    return kind;
}

/* Read up to the next event and set `used` to the number of bytes read.  Pointers in an event are valid until the
 * next call.  HTTP2_MORE: all bytes were read. */
static inline uint8_t http2_receive(http2 *h, const uint8_t *data, size_t n, size_t *used, http2_event *e) {
    size_t at = 0, taken;
    uint8_t kind = h->broken ? HTTP2_BROKEN : HTTP2_MORE;
    memset(e, 0, sizeof *e);
    while (kind == HTTP2_MORE) {
        if (h->end_waits) {
            kind = http2_end_stream(h, e);
            continue;
        }
        if (h->head_len == FRAME_HEAD && h->length == 0) {
            h->head_len = 0;
            kind = http2_end_frame(h, e);
            continue;
        }
        if (at == n) break;
        if (h->head_len < FRAME_HEAD) {
            h->head[h->head_len++] = data[at++];
            if (h->head_len == FRAME_HEAD) kind = http2_begin_frame(h);
            continue;
        }
        kind = http2_payload(h, data + at, n - at, &taken, e);
        at += taken;
    }
    if (kind == HTTP2_BROKEN) e->code = h->code;
    *used = at;
    e->kind = kind;
    return kind;
}

#endif
