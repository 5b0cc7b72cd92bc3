/* Where a Location header leads, seen from a probe: to the same host (followed) or elsewhere (a warning).
 * Reference resolution for http URLs as in Go's net/url.  Escapes are kept; bytes that may not stand in a path
 * are escaped. */
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

static inline int location_is_letter(uint8_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

static inline int location_is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static inline int location_is_hex(uint8_t c) {
    return location_is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

/* The length of the scheme before its colon; 0 = there is none, -1 = a colon stands first. */
static inline int location_scheme(const char *value, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) {
        uint8_t c = (uint8_t)value[i];
        if (c == ':') return i ? (int)i : -1;
        if (location_is_letter(c)) continue;
        if (i == 0 || !(location_is_digit(c) || c == '+' || c == '-' || c == '.')) return 0;
    }
    return 0;
}

static inline int location_scheme_is(const char *value, size_t n, const char *name) {
    size_t i;
    for (i = 0; i < n && name[i]; i++)
        if (((uint8_t)value[i] | 0x20) != (uint8_t)name[i]) return 0;
    return i == n && !name[i];
}

/* Whether each percent sign begins an escape. */
static inline int location_escapes_well(const char *text, size_t n) {
    size_t i;
    for (i = 0; i < n; i++)
        if (text[i] == '%' &&
            (i + 2 >= n || !location_is_hex((uint8_t)text[i + 1]) || !location_is_hex((uint8_t)text[i + 2])))
            return 0;
    return 1;
}

/* 2 = the byte stands in any path, 1 = only in one without bytes that have to be escaped, 0 = in none. */
static inline int location_in_path(uint8_t c) {
    if (location_is_letter(c) || location_is_digit(c) || (c && strchr("-._~$&+,/:;=@%", c))) return 2;
    return c && strchr("!'()*[]", c) ? 1 : 0;
}

/* Append a path and its query, the path escaped.  Returns the length, or SIZE_MAX if it does not fit. */
static inline size_t location_write(char *out, size_t at, size_t size, const char *value, size_t n) {
    static const char hex[] = "0123456789ABCDEF";
    size_t i, path;
    int least = 1;
    for (path = 0; path < n && value[path] != '?'; path++)
        if (!location_in_path((uint8_t)value[path])) least = 2;
    for (i = 0; i < n; i++) {
        uint8_t c = (uint8_t)value[i];
        int whole = i >= path || location_in_path(c) >= least;
        if (at + (whole ? 1 : 3) > size) return SIZE_MAX;
        if (whole) {
            out[at++] = (char)c;
            continue;
        }
        out[at++] = '%';
        out[at++] = hex[c >> 4];
        out[at++] = hex[c & 15];
    }
    return at;
}

/* Resolve `value` against an http URL with this host and path (path with its query).  The resolved path
 * goes into out (capacity size). */
static inline uint8_t location_resolve(const char *value, size_t n, const char *host, size_t host_len,
                                       const char *base, size_t base_len, char *out, size_t size,
                                       http_location *found) {
    size_t i = 0, keep, path;
    int scheme;
    uint8_t tls = 0, other = 0, bad_port = 0;
    memset(found, 0, sizeof *found);
    for (i = 0; i < n; i++)
        if ((uint8_t)value[i] < 0x20 || value[i] == 0x7f) return LOCATION_BAD;
    for (i = 0; i < n; i++)
        if (value[i] == '#') {
            if (!location_escapes_well(value + i, n - i)) return LOCATION_BAD;
            n = i;
        }
    scheme = location_scheme(value, n);
    if (scheme < 0) return LOCATION_BAD;
    if (scheme > 0) {
        found->absolute = 1;
        tls = (uint8_t)location_scheme_is(value, (size_t)scheme, "https");
        other = !tls && !location_scheme_is(value, (size_t)scheme, "http");
        value += scheme + 1;
        n -= (size_t)scheme + 1;
    } else {
        for (i = 0; i < n && value[i] != '/' && value[i] != '?'; i++)
            if (value[i] == ':') return LOCATION_BAD;
    }
    /* Three slashes without a scheme begin a path. */
    if (n >= 2 && value[0] == '/' && value[1] == '/' && (scheme || n == 2 || value[2] != '/')) {
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
                if (!location_is_digit((uint8_t)value[at])) return LOCATION_BAD;
                if (port <= 65535) port = port * 10 + (uint32_t)(value[at] - '0');
            }
            bad_port = port == 0 || port > 65535;
        }
        found->port = (uint16_t)(port ? port : tls ? 443 : 80);
        value += end;
        n -= end;
        if (end == 2 && !scheme) {
            /* An empty authority names the same one. */
            found->authority = found->host = 0;
            found->port = 0;
        } else {
            base = "/";
            base_len = 1;
        }
    }
    for (path = 0; path < n && value[path] != '?'; path++) {
    }
    if (scheme > 0 && !found->authority) {
        /* No host, and without a slash an opaque text. */
        return n && value[0] == '/' && !location_escapes_well(value, path) ? LOCATION_BAD : LOCATION_FOREIGN;
    }
    if (!location_escapes_well(value, path)) return LOCATION_BAD;
    if (found->authority && (found->host_len != host_len || memcmp(found->host, host, host_len) != 0))
        return LOCATION_FOREIGN;
    if (other || bad_port) return LOCATION_BAD;
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
    n = location_write(out, keep, size - 1, value, n);
    if (n == SIZE_MAX) return LOCATION_BAD;
    if (n == 0 || out[0] != '/') {
        memmove(out + 1, out, n);
        out[0] = '/';
        n++;
    }
    found->path_len = location_remove_dots(out, n);
    return LOCATION_SAME_HOST;
}

#endif
