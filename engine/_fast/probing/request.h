/* Builds the request of one connection from parts that many probes share and parts of this probe.
 * engine/probes/request.py writes the shared parts. */
#ifndef KUBENGINE_PROBING_REQUEST_H
#define KUBENGINE_PROBING_REQUEST_H

#include <arpa/inet.h>
#include <stdio.h>

#include "table.h"

static const char REQUEST_GET[] = "GET ";
static const char REQUEST_HOST[] = " HTTP/1.1\r\nHost: ";
static const char REQUEST_LINE_END[] = "\r\n";

#define AUTHORITY_SIZE 64
#define CONTAINER_ID_LIMIT 127 /* so that its length is one byte */
#define H2_BLOCK_AT 39         /* the HEADERS frame of a gRPC health check, after preface and SETTINGS */

static inline void address_set_port(probe_address *a, uint16_t port) {
    if (a->any.sa_family == AF_INET6)
        a->v6.sin6_port = htons(port);
    else
        a->v4.sin_port = htons(port);
}

static inline uint16_t address_port(const probe_address *a) {
    return ntohs(a->any.sa_family == AF_INET6 ? a->v6.sin6_port : a->v4.sin_port);
}

static inline char *decimal_write(char *out, uint32_t number) {
    char digits[10];
    int n = 0;
    do {
        digits[n++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (n > 0) *out++ = digits[--n];
    return out;
}

/* The address as a URL's host, without brackets.  Returns its end. */
static inline char *address_write(const probe_address *a, char *out) {
    if (a->any.sa_family == AF_INET) {
        uint32_t v4 = ntohl(a->v4.sin_addr.s_addr);
        int shift;
        for (shift = 24; shift >= 0; shift -= 8) {
            out = decimal_write(out, v4 >> shift & 255);
            if (shift) *out++ = '.';
        }
        return out;
    }
    inet_ntop(AF_INET6, &a->v6.sin6_addr, out, INET6_ADDRSTRLEN);
    return out + strlen(out);
}

/* host:port, IPv6 in brackets.  Returns its length. */
static inline uint32_t authority_write(const probe_address *a, char out[AUTHORITY_SIZE]) {
    char *end = out;
    if (a->any.sa_family == AF_INET6) *end++ = '[';
    end = address_write(a, end);
    if (a->any.sa_family == AF_INET6) *end++ = ']';
    *end++ = ':';
    return (uint32_t)(decimal_write(end, address_port(a)) - out);
}

/* Make space for the whole request; 0 = out of memory. */
static inline int request_begin(connection *c, size_t size) {
    c->request_len = 0;
    if (size > c->request_size) {
        char *grown = size > UINT32_MAX ? 0 : realloc(c->request, size);
        if (!grown) return 0;
        c->request = grown;
        c->request_size = (uint32_t)size;
    }
    return 1;
}

static inline void request_add(connection *c, const void *bytes, uint32_t len) {
    memcpy(c->request + c->request_len, bytes, len);
    c->request_len += len;
}

/* The parts must not overlap c->request. */
static inline int request_http(connection *c, text_part path, text_part host, text_part rest) {
    size_t fixed = sizeof REQUEST_GET + sizeof REQUEST_HOST + sizeof REQUEST_LINE_END - 3;
    if (!request_begin(c, fixed + path.len + host.len + rest.len)) return 0;
    request_add(c, REQUEST_GET, sizeof REQUEST_GET - 1);
    request_add(c, path.at, path.len);
    request_add(c, REQUEST_HOST, sizeof REQUEST_HOST - 1);
    request_add(c, host.at, host.len);
    request_add(c, REQUEST_LINE_END, sizeof REQUEST_LINE_END - 1);
    request_add(c, rest.at, rest.len);
    c->path_len = path.len;
    return 1;
}

/* The head ends with the one-byte length of the authority; its HEADERS frame doesn't count the authority yet. */
static inline int request_grpc(connection *c, text_part head, text_part authority, text_part tail) {
    uint32_t block;
    uint8_t *at;
    if (!request_begin(c, (size_t)head.len + authority.len + tail.len)) return 0;
    request_add(c, head.at, head.len);
    request_add(c, authority.at, authority.len);
    request_add(c, tail.at, tail.len);
    at = (uint8_t *)c->request + H2_BLOCK_AT;
    block = ((uint32_t)at[1] << 8 | at[2]) + authority.len;
    at[1] = (uint8_t)(block >> 8);
    at[2] = (uint8_t)block;
    c->request[head.len - 1] = (char)authority.len;
    return 1;
}

/* Write the message into DATA frames of the size that every server accepts: its length, the container's id
 * as field 1, and the rest. */
static inline int request_exec(connection *c, text_part head, const char *id, text_part tail) {
    uint32_t id_len = (uint32_t)strlen(id), message = 2 + id_len + tail.len, left = 5 + message, at = 0;
    uint8_t prefix[7] = {
        0,    (uint8_t)(message >> 24), (uint8_t)(message >> 16), (uint8_t)(message >> 8), (uint8_t)message,
        0x0a, (uint8_t)id_len};
    text_part parts[] = {{(const char *)prefix, sizeof prefix}, {id, id_len}, tail};
    size_t part = 0;
    if (!request_begin(c, (size_t)head.len + left + (left / FRAME_LIMIT + 1) * FRAME_HEAD)) return 0;
    request_add(c, head.at, head.len);
    while (left > 0) {
        uint32_t room = left < FRAME_LIMIT ? left : FRAME_LIMIT;
        uint8_t frame[FRAME_HEAD];
        left -= room;
        frame_write_head(frame, room, FRAME_DATA, left == 0 ? FLAG_END_STREAM : 0, 1);
        request_add(c, frame, sizeof frame);
        while (room > 0) {
            uint32_t take = parts[part].len - at < room ? parts[part].len - at : room;
            request_add(c, parts[part].at + at, take);
            room -= take;
            at += take;
            if (at == parts[part].len) {
                part++;
                at = 0;
            }
        }
    }
    return 1;
}

/* Build the first bytes that the probe sends.  0 = out of memory. */
static inline int request_compose(connection *c, const probe *p) {
    char name[AUTHORITY_SIZE];
    text_part head, host, tail;
    c->request_len = 0;
    if (p->kind == KIND_TCP) return 1;
    head = text_get(p->text, TEXT_HEAD);
    host = text_get(p->text, TEXT_NAME);
    tail = text_get(p->text, TEXT_TAIL);
    if (p->kind == KIND_EXEC) return request_exec(c, head, p->target.container, tail);
    if (host.len == 0) {
        host.at = name;
        host.len = authority_write(&p->target.address, name);
    }
    return p->kind != KIND_HTTP ? request_grpc(c, head, host, tail) : request_http(c, head, host, tail);
}

#endif
