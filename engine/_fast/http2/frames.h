/* The words of HTTP/2 frames (RFC 9113, sections 4, 6 and 7). */
#ifndef KUBENGINE_HTTP2_FRAMES_H
#define KUBENGINE_HTTP2_FRAMES_H

#include <stdint.h>
#include <string.h>

#define FRAME_HEAD 9
#define FRAME_LIMIT 16384 /* the largest payload, until the other side allows more */
#define WINDOW_DEFAULT 65535
#define WINDOW_LIMIT 0x7fffffff
#define STREAM_LIMIT 0x7fffffffu

enum frame_type {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_PRIORITY = 2,
    FRAME_RST_STREAM = 3,
    FRAME_SETTINGS = 4,
    FRAME_PUSH_PROMISE = 5,
    FRAME_PING = 6,
    FRAME_GOAWAY = 7,
    FRAME_WINDOW_UPDATE = 8,
    FRAME_CONTINUATION = 9
};
enum frame_flag {
    FLAG_ACK = 1,
    FLAG_END_STREAM = 1,
    FLAG_END_HEADERS = 4,
    FLAG_PADDED = 8,
    FLAG_PRIORITY = 32
};
enum frame_setting {
    SETTING_ENABLE_PUSH = 2,
    SETTING_MAX_CONCURRENT_STREAMS = 3,
    SETTING_INITIAL_WINDOW_SIZE = 4,
    SETTING_MAX_FRAME_SIZE = 5,
    SETTING_MAX_HEADER_LIST_SIZE = 6
};
enum http2_error {
    HTTP2_NO_ERROR = 0,
    HTTP2_PROTOCOL_ERROR = 1,
    HTTP2_FLOW_CONTROL_ERROR = 3,
    HTTP2_STREAM_CLOSED = 5,
    HTTP2_FRAME_SIZE_ERROR = 6,
    HTTP2_COMPRESSION_ERROR = 9,
    HTTP2_ENHANCE_YOUR_CALM = 11
};

static const char HTTP2_PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

static inline uint32_t frame_read_number(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint8_t *frame_write_number(uint8_t *out, uint32_t n) {
    out[0] = (uint8_t)(n >> 24);
    out[1] = (uint8_t)(n >> 16);
    out[2] = (uint8_t)(n >> 8);
    out[3] = (uint8_t)n;
    return out + 4;
}

static inline uint8_t *frame_write_head(uint8_t *out, uint32_t length, uint8_t type, uint8_t flags,
                                        uint32_t stream) {
    frame_write_number(out, length << 8 | type);
    out[4] = flags;
    return frame_write_number(out + 5, stream);
}

/* A frame of one number: RST_STREAM or WINDOW_UPDATE. */
static inline uint8_t *frame_write_one(uint8_t *out, uint8_t type, uint32_t stream, uint32_t n) {
    return frame_write_number(frame_write_head(out, 4, type, 0, stream), n);
}

static inline uint8_t *frame_write_setting(uint8_t *out, uint16_t setting, uint32_t value) {
    *out++ = (uint8_t)(setting >> 8);
    *out++ = (uint8_t)setting;
    return frame_write_number(out, value);
}

#endif
