/* Where a Location header leads, seen from a probe: to the same host (followed) or elsewhere (a warning).
 * RFC 3986 reference resolution for http URLs, without escapes being touched. */
#ifndef KUBENGINE_PROBING_LOCATION_H
#define KUBENGINE_PROBING_LOCATION_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum location_verdict { LOCATION_SAME_HOST = 0, LOCATION_FOREIGN = 1, LOCATION_TLS = 2, LOCATION_BAD = 3 };

typedef struct {
    const char *authority; /* host[:port] as written in the location; NULL when it is relative */
    size_t authority_len;
    const char *host; /* without brackets; NULL when relative */
    size_t host_len;
    uint16_t port;    /* valid unless relative */
    uint8_t absolute; /* a scheme is named */
    size_t path_len;  /* of the resolved path and query */
} http_location;

/* Drop "." and ".." segments of an absolute path, in place; the query stays.  Returns the new length. */
static inline size_t location_remove_dots(char *path, size_t n) {
    size_t end = 0, in = 0, out = 0;
    while (end < n && path[end] != '?') end++;
    while (in < end) {
        size_t next = in + 1, len;
        while (next < end && path[next] != '/') next++;
        len = next - in - 1; /* of the segment after the slash */
        if (len == 1 && path[in + 1] == '.') {
            if (next == end) path[out++] = '/';
        } else if (len == 2 && path[in + 1] == '.' && path[in + 2] == '.') {
            while (out > 0 && path[--out] != '/') {
            }
            if (next == end) path[out++] = '/';
        } else {
            memmove(path + out, path + in, next - in);
            out += next - in;
        }
        in = next;
    }
    if (out == 0) path[out++] = '/';
    if (out < end)
        memmove(path + out, path + end, n - end);
    else if (end < n && out > end)
        return n; /* cannot grow: a path begins with a slash */
    return out + (n - end);
}

/* Resolve `value` against an http URL with this host and path (path with its query).  The resolved path
 * goes into out (capacity size). */
static inline uint8_t location_resolve(const char *value, size_t n, const char *host, size_t host_len,
                                       const char *base, size_t base_len, char *out, size_t size,
                                       http_location *found) {
    size_t i = 0, colon, keep;
    uint8_t tls = 0;
    memset(found, 0, sizeof *found);
    for (i = 0; i < n; i++)
        if ((uint8_t)value[i] < 0x20 || value[i] == 0x7f) return LOCATION_BAD;
    for (i = 0; i < n; i++)
        if (value[i] == '#') n = i;
    for (colon = 0; colon < n && value[colon] != ':' && value[colon] != '/' && value[colon] != '?'; colon++) {
    }
    if (colon < n && value[colon] == ':') {
        if (colon == 0) return LOCATION_BAD;
        found->absolute = 1;
        if (colon == 5 && strncmp(value, "https", 5) == 0)
            tls = 1;
        else if (!(colon == 4 && strncmp(value, "http", 4) == 0))
            return LOCATION_FOREIGN;
        value += colon + 1;
        n -= colon + 1;
        if (n < 2 || value[0] != '/' || value[1] != '/') return LOCATION_FOREIGN;
    }
    if (n >= 2 && value[0] == '/' && value[1] == '/') {
        size_t start = 2, end = 2, at;
        uint32_t port = 0;
        while (end < n && value[end] != '/' && value[end] != '?') end++;
        for (at = start; at < end; at++)
            if (value[at] == '@') start = at + 1;
        found->authority = value + start;
        found->authority_len = end - start;
        found->host = found->authority;
        if (start < end && value[start] == '[') {
            for (at = start; at < end && value[at] != ']'; at++) {
            }
            if (at == end) return LOCATION_BAD;
            found->host++;
            found->host_len = at - start - 1;
            at++;
        } else {
            for (at = start; at < end && value[at] != ':'; at++) {
            }
            found->host_len = at - start;
        }
        if (at < end && value[at] != ':') return LOCATION_BAD;
        if (at + 1 < end) {
            for (at++; at < end; at++) {
                if (value[at] < '0' || value[at] > '9') return LOCATION_BAD;
                port = port * 10 + (uint32_t)(value[at] - '0');
                if (port > 65535) return LOCATION_BAD;
            }
            if (port == 0) return LOCATION_BAD;
        }
        found->port = (uint16_t)(port ? port : tls ? 443 : 80);
        if (found->host_len != host_len || memcmp(found->host, host, host_len) != 0) return LOCATION_FOREIGN;
        value += end;
        n -= end;
        base = "/";
        base_len = 1;
    }
    if (tls) return LOCATION_TLS;
    if (n > 0 && value[0] == '/')
        keep = 0;
    else {
        for (keep = 0; keep < base_len && base[keep] != '?'; keep++) {
        }
        if (n == 0)
            keep = base_len;
        else if (value[0] != '?')
            while (keep > 0 && base[keep - 1] != '/') keep--;
    }
    if (keep + n + 1 > size) return LOCATION_BAD;
    memcpy(out, base, keep);
    memcpy(out + keep, value, n);
    n += keep;
    if (n == 0 || out[0] != '/') {
        memmove(out + 1, out, n);
        out[0] = '/';
        n++;
    }
    for (i = 0; i < n; i++)
        if (out[i] == ' ') return LOCATION_BAD;
    found->path_len = location_remove_dots(out, n);
    return LOCATION_SAME_HOST;
}

#endif
