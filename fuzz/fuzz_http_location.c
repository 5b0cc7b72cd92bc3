/* Up to the first newline: the base path; after it: the Location. */
#include <stdlib.h>

#include "location.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const uint8_t *end = n ? memchr(data, '\n', n) : NULL;
    size_t base = end ? (size_t)(end - data) : 0;
    char *path, *value, *out = malloc(2048);
    http_location found;
    uint8_t verdict;
    size_t rest = end ? n - base - 1 : n;
    path = malloc(base + 1);
    value = malloc(rest + 1);
    path[0] = '/';
    memcpy(path + 1, data, base);
    memcpy(value, data + (n - rest), rest);
    verdict = location_resolve(value, rest, "h", 1, path, base + 1, out, 2048, &found);
    if (verdict > LOCATION_BAD) abort();
    if (verdict == LOCATION_SAME_HOST && (found.path_len == 0 || found.path_len > 2048 || out[0] != '/'))
        abort();
    free(path);
    free(value);
    free(out);
    return 0;
}
