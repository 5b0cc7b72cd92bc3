/* The first byte is the length of the pieces; the rest are the server's bytes. */
#include <stdlib.h>

#include "response.h"

static void read_all(http_response *r, const uint8_t *data, size_t n, size_t piece) {
    size_t at = 0, used;
    http_reset(r);
    while (at < n) {
        size_t take = n - at < piece ? n - at : piece;
        uint8_t verdict = http_feed(r, data + at, take, &used);
        if (used > take || verdict > HTTP_BROKEN) abort();
        at += used;
        if (verdict >= HTTP_DONE) break;
        if (used == 0 && verdict == HTTP_MORE && take) abort();
    }
    http_eof(r, n & 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static http_response whole, cut;
    if (n < 1) return 0;
    read_all(&whole, data + 1, n - 1, n);
    read_all(&cut, data + 1, n - 1, 1 + data[0] % 16);
    if (whole.verdict != cut.verdict) abort();
    if (whole.verdict == HTTP_DONE && (whole.status != cut.status || whole.location_len != cut.location_len))
        abort();
    if (whole.location_len > HTTP_VALUE_SIZE || whole.excerpt_len > HTTP_EXCERPT_SIZE) abort();
    return 0;
}
