/* An HTTP/1.x response as a probe reads it: bytes in, verdict out; no socket, no allocation, the same
 * few hundred bytes however large the response.  Leniency is that of Go's net/http, which the kubelet
 * uses: bare LF ends a line but none of a chunk's, folded headers are joined, interim responses are skipped.
 * response.py states the rules. */
#ifndef KUBENGINE_PROBING_RESPONSE_H
#define KUBENGINE_PROBING_RESPONSE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HTTP_BODY_ENOUGH 10240        /* the kubelet's maxRespBodyLength, pkg/probe/http */
#define HTTP_HEADER_LIMIT (10u << 20) /* net/http's default for MaxResponseHeaderBytes; with interim ones */
#define HTTP_CHUNK_LINE_LIMIT 4096    /* maxLineLength of net/http's chunked reader */
#define HTTP_VALUE_SIZE 2048
#define HTTP_EXCERPT_SIZE 512

enum http_verdict {
    HTTP_MORE = 0,      /* feed more */
    HTTP_HEADERS = 1,   /* the header block ended: status, location are known; feed the rest for the body */
    HTTP_DONE = 2,      /* the body ended, or enough of it was read */
    HTTP_MALFORMED = 3, /* not a response: the probe failed */
    HTTP_BROKEN = 4     /* the body ended early: the attempt is an error */
};

enum http_phase {
    AT_VERSION,
    AT_STATUS_GAP,
    AT_STATUS,
    AT_REASON,
    AT_LINE,
    AT_LINE_CR,
    AT_NAME,
    AT_GAP,
    AT_VALUE,
    AT_VALUE_CR,
    AT_LENGTH,
    AT_UNTIL_EOF,
    AT_CHUNK_SIZE,
    AT_CHUNK_REST,
    AT_CHUNK_CR,
    AT_CHUNK_DATA,
    AT_CHUNK_END,
    AT_CHUNK_END_LF,
    AT_TRAILER,
    AT_TRAILER_NAME,
    AT_TRAILER_VALUE,
    AT_TRAILER_CR,
    AT_TRAILERS_END,
    AT_END
};

enum http_header { HEADER_OTHER, HEADER_LENGTH, HEADER_ENCODING, HEADER_LOCATION };

typedef struct {
    uint64_t remaining; /* of a counted body or the current chunk */
    uint64_t length;    /* Content-Length */
    uint32_t header_bytes;
    uint32_t body_bytes;
    uint32_t line_bytes;
    uint16_t status;
    uint16_t value_len;
    uint16_t location_len;
    uint16_t excerpt_len;
    uint8_t phase;
    uint8_t verdict;
    uint8_t header; /* enum http_header of the line being read */
    uint8_t name_len;
    uint8_t index;
    uint8_t minor_zero; /* HTTP/1.0 and older have no transfer encodings */
    uint8_t has_length, has_location, chunked, encodings, digits;
    uint8_t first_line;
    char name[20];
    char value[HTTP_VALUE_SIZE];
    char location[HTTP_VALUE_SIZE];
    char excerpt[HTTP_EXCERPT_SIZE];
} http_response;

static inline void http_reset(http_response *r) {
    memset(r, 0, offsetof(http_response, name));
    r->phase = AT_VERSION;
    r->first_line = 1;
}

static inline int http_is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static inline int http_is_token(uint8_t c) {
    if (http_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return 1;
    return c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static inline int http_name_is(const http_response *r, const char *name) {
    size_t n = strlen(name);
    return r->name_len == n && memcmp(r->name, name, n) == 0;
}

static inline int http_is_interim(const http_response *r) {
    return r->status >= 100 && r->status < 200 && r->status != 101;
}

/* Handle the complete header line in name/value.  0 = refuse the response. */
static inline int http_end_header(http_response *r) {
    uint64_t length = 0;
    uint16_t i, n = r->value_len;
    uint8_t header = r->header;
    r->header = HEADER_OTHER;
    while (n > 0 && (r->value[n - 1] == ' ' || r->value[n - 1] == '\t')) n--;
    switch (header) {
    case HEADER_LENGTH:
        if (n == 0 || n > 18) return 0; /* 18 digits never overflow 64 bits */
        for (i = 0; i < n; i++) {
            if (!http_is_digit((uint8_t)r->value[i])) return 0;
            length = length * 10 + (uint64_t)(r->value[i] - '0');
        }
        /* Several must be the same text. */
        if (r->has_length && (r->length != length || r->has_length != n)) return 0;
        r->has_length = (uint8_t)n;
        r->length = length;
        return 1;
    case HEADER_ENCODING:
        if (++r->encodings > 1 || n != 7) return 0;
        for (i = 0; i < n; i++)
            if ((r->value[i] | 0x20) != "chunked"[i]) return 0;
        r->chunked = 1;
        return 1;
    case HEADER_LOCATION:
        if (r->has_location) return 1; /* the first of several, as Header.Get returns it */
        r->has_location = 1;
        r->location_len = n;
        memcpy(r->location, r->value, n);
        return 1;
    default: return 1;
    }
}

static inline uint8_t http_end_headers(http_response *r) {
    if (!http_end_header(r)) return HTTP_MALFORMED;
    if (http_is_interim(r)) {
        uint32_t bytes = r->header_bytes;
        http_reset(r);
        r->header_bytes = bytes;
        return HTTP_MORE;
    }
    /* RFC 9112, section 6.3: these have no body, whatever their headers say. */
    if (r->status == 204 || r->status == 304 || r->status == 101)
        r->phase = AT_END;
    else if (r->chunked) {
        r->phase = AT_CHUNK_SIZE;
        r->remaining = 0;
        r->digits = 0;
        r->line_bytes = 0;
    } else if (r->has_length) {
        r->remaining = r->length;
        r->phase = r->length ? AT_LENGTH : AT_END;
    } else
        r->phase = AT_UNTIL_EOF;
    return HTTP_HEADERS;
}

static inline uint8_t http_header_byte(http_response *r, uint8_t c) {
    if (++r->header_bytes > HTTP_HEADER_LIMIT) return HTTP_MALFORMED;
    switch (r->phase) {
    case AT_VERSION: {
        static const char shape[] = "HTTP/0.0 ";
        uint8_t want = (uint8_t)shape[r->index];
        if (want == '0' ? !http_is_digit(c) : c != want) return HTTP_MALFORMED;
        if (r->index == 5) r->digits = c;
        if (r->index == 7) r->minor_zero = r->digits < '1' || (r->digits == '1' && c == '0');
        if (++r->index == 9) {
            r->phase = AT_STATUS_GAP;
            r->digits = 0;
        }
        return HTTP_MORE;
    }
    case AT_STATUS_GAP:
        if (c == ' ') return HTTP_MORE;
        r->phase = AT_STATUS;
        /* fall through */
    case AT_STATUS:
        if (http_is_digit(c) && r->digits < 3) {
            r->status = (uint16_t)(r->status * 10 + (c - '0'));
            r->digits++;
            return HTTP_MORE;
        }
        if (r->digits != 3 || (c != ' ' && c != '\r' && c != '\n')) return HTTP_MALFORMED;
        r->phase = c == '\n' ? AT_LINE : AT_REASON;
        if (c == '\r') r->line_bytes = 1;
        return HTTP_MORE;
    case AT_REASON:
        if (r->line_bytes && c != '\n') return HTTP_MALFORMED;
        if (c == '\n') {
            r->phase = AT_LINE;
            r->line_bytes = 0;
        }
        return HTTP_MORE;
    case AT_LINE:
        if ((c == ' ' || c == '\t')) {
            if (r->first_line) return HTTP_MALFORMED;
            if (r->header != HEADER_OTHER && r->value_len > 0) {
                while (r->value_len > 0 &&
                       (r->value[r->value_len - 1] == ' ' || r->value[r->value_len - 1] == '\t'))
                    r->value_len--;
                if (r->value_len < HTTP_VALUE_SIZE) r->value[r->value_len++] = ' ';
            }
            r->phase = AT_GAP;
            return HTTP_MORE;
        }
        if (c == '\r') {
            r->phase = AT_LINE_CR;
            return HTTP_MORE;
        }
        if (c == '\n') return http_end_headers(r);
        if (!http_end_header(r)) return HTTP_MALFORMED;
        r->first_line = 0;
        r->name_len = 0;
        r->value_len = 0;
        r->phase = AT_NAME;
        /* fall through */
    case AT_NAME:
        if (c == ':') {
            if (r->name_len == 0) return HTTP_MALFORMED;
            r->header = http_is_interim(r)                                       ? HEADER_OTHER
                        : http_name_is(r, "content-length")                      ? HEADER_LENGTH
                        : http_name_is(r, "transfer-encoding") && !r->minor_zero ? HEADER_ENCODING
                        : http_name_is(r, "location")                            ? HEADER_LOCATION
                                                                                 : HEADER_OTHER;
            r->phase = AT_GAP;
            return HTTP_MORE;
        }
        if (!http_is_token(c) && c != ' ') return HTTP_MALFORMED;
        if (r->name_len < sizeof r->name)
            r->name[r->name_len++] = (char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
        return HTTP_MORE;
    case AT_LINE_CR: return c == '\n' ? http_end_headers(r) : HTTP_MALFORMED;
    case AT_GAP:
        if (c == ' ' || c == '\t') return HTTP_MORE;
        r->phase = AT_VALUE;
        /* fall through */
    case AT_VALUE:
        if (c == '\n') {
            r->phase = AT_LINE;
            return HTTP_MORE;
        }
        if (c == '\r') {
            r->phase = AT_VALUE_CR;
            return HTTP_MORE;
        }
        if ((c < 0x20 && c != '\t') || c == 0x7f) return HTTP_MALFORMED;
        if (r->header == HEADER_OTHER) return HTTP_MORE;
        if (r->value_len < HTTP_VALUE_SIZE)
            r->value[r->value_len++] = (char)c;
        else if (c != ' ' && c != '\t') /* ignore trailing white space */
            return HTTP_MALFORMED;
        return HTTP_MORE;
    case AT_VALUE_CR:
        if (c != '\n') return HTTP_MALFORMED;
        r->phase = AT_LINE;
        return HTTP_MORE;
    default: return HTTP_MALFORMED;
    }
}

static inline int http_hex(uint8_t c) {
    if (http_is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Read one byte after the last chunk: header lines, whose values do not matter, and an empty line. */
static inline uint8_t http_trailer_byte(http_response *r, uint8_t c) {
    switch (r->phase) {
    case AT_TRAILER:
        if (c == '\r') {
            r->phase = AT_TRAILERS_END;
            return HTTP_MORE;
        }
        if (c == ' ' || c == '\t') { /* folded */
            r->phase = AT_TRAILER_VALUE;
            return r->first_line ? HTTP_BROKEN : HTTP_MORE;
        }
        r->first_line = 0;
        r->phase = AT_TRAILER_NAME;
        return http_is_token(c) ? HTTP_MORE : HTTP_BROKEN;
    case AT_TRAILER_NAME:
        if (c == ':')
            r->phase = AT_TRAILER_VALUE;
        else if (!http_is_token(c) && c != ' ')
            return HTTP_BROKEN;
        return HTTP_MORE;
    case AT_TRAILER_VALUE:
        if (c == '\r') {
            r->phase = AT_TRAILER_CR;
            return HTTP_MORE;
        }
        return (c < 0x20 && c != '\t') || c == 0x7f ? HTTP_BROKEN : HTTP_MORE;
    case AT_TRAILER_CR: r->phase = AT_TRAILER; return c == '\n' ? HTTP_MORE : HTTP_BROKEN;
    default: /* AT_TRAILERS_END */ r->phase = AT_END; return c == '\n' ? HTTP_DONE : HTTP_BROKEN;
    }
}

/* Read one byte of chunk framing. */
static inline uint8_t http_chunk_byte(http_response *r, uint8_t c) {
    int digit;
    if (++r->line_bytes > HTTP_CHUNK_LINE_LIMIT) return HTTP_BROKEN;
    switch (r->phase) {
    case AT_CHUNK_SIZE:
        digit = http_hex(c);
        if (digit >= 0) {
            if (++r->digits > 15) return HTTP_BROKEN; /* 60 bits */
            r->remaining = r->remaining << 4 | (uint64_t)digit;
            return HTTP_MORE;
        }
        if (r->digits == 0 || (c != '\r' && c != '\n' && c != ';' && c != ' ' && c != '\t'))
            return HTTP_BROKEN;
        r->index = c != ';'; /* white space is allowed only at the end */
        r->phase = AT_CHUNK_REST;
        /* fall through */
    case AT_CHUNK_REST:
        if (c == '\r') {
            r->phase = AT_CHUNK_CR;
            return HTTP_MORE;
        }
        return c == '\n' || (r->index && c != ' ' && c != '\t') ? HTTP_BROKEN : HTTP_MORE;
    case AT_CHUNK_CR:
        if (c != '\n') return HTTP_BROKEN;
        r->line_bytes = 0;
        r->first_line = 1;
        r->phase = r->remaining ? AT_CHUNK_DATA : AT_TRAILER;
        return HTTP_MORE;
    case AT_CHUNK_END: r->phase = AT_CHUNK_END_LF; return c == '\r' ? HTTP_MORE : HTTP_BROKEN;
    case AT_CHUNK_END_LF:
        if (c != '\n') return HTTP_BROKEN;
        r->phase = AT_CHUNK_SIZE;
        r->digits = 0;
        r->line_bytes = 0;
        return HTTP_MORE;
    default: return http_trailer_byte(r, c);
    }
}

/* Handle bytes of body data: count them, store the first few, return whether that is enough. */
static inline uint8_t http_body(http_response *r, const uint8_t *data, size_t n) {
    size_t room = HTTP_EXCERPT_SIZE - r->excerpt_len;
    if (room > n) room = n;
    memcpy(r->excerpt + r->excerpt_len, data, room);
    r->excerpt_len = (uint16_t)(r->excerpt_len + room);
    r->body_bytes += (uint32_t)(n > HTTP_BODY_ENOUGH ? HTTP_BODY_ENOUGH : n);
    return r->body_bytes >= HTTP_BODY_ENOUGH ? HTTP_DONE : HTTP_MORE;
}

/* Take up to n bytes.  Returns the verdict and, in *used, how many were read; after HTTP_HEADERS the
 * rest of the input is body and may be fed again. */
static inline uint8_t http_feed(http_response *r, const uint8_t *data, size_t n, size_t *used) {
    size_t at = 0;
    uint8_t verdict = HTTP_MORE;
    if (r->verdict >= HTTP_DONE) {
        *used = 0;
        return r->verdict;
    }
    if (r->phase == AT_END) verdict = HTTP_DONE;
    while (verdict == HTTP_MORE && at < n) {
        if (r->phase < AT_LENGTH) {
            verdict = http_header_byte(r, data[at++]);
        } else if (r->phase == AT_LENGTH || r->phase == AT_CHUNK_DATA) {
            size_t take = n - at;
            if (take > r->remaining) take = (size_t)r->remaining;
            verdict = http_body(r, data + at, take);
            at += take;
            r->remaining -= take;
            if (r->remaining == 0 && verdict == HTTP_MORE) {
                if (r->phase == AT_LENGTH) {
                    r->phase = AT_END;
                    verdict = HTTP_DONE;
                } else {
                    r->phase = AT_CHUNK_END;
                    r->line_bytes = 0;
                }
            }
        } else if (r->phase == AT_UNTIL_EOF) {
            verdict = http_body(r, data + at, n - at);
            at = n;
        } else {
            verdict = http_chunk_byte(r, data[at++]);
        }
    }
    r->verdict = verdict;
    *used = at;
    return verdict;
}

/* Handle a connection that the peer closed (or reset). */
static inline uint8_t http_eof(http_response *r, int reset) {
    if (r->verdict >= HTTP_DONE) return r->verdict;
    if (r->phase == AT_END || (r->phase == AT_UNTIL_EOF && !reset))
        r->verdict = HTTP_DONE;
    else
        r->verdict = r->phase < AT_LENGTH ? HTTP_MALFORMED : HTTP_BROKEN;
    return r->verdict;
}

#endif
