/* The first byte says how long the pieces are; the rest is what the server sends. */
#include <stdlib.h>

#include "probe_grpc.h"

static void read_all(grpc_answer *g, const uint8_t *data, size_t n, size_t piece) {
    size_t at;
    grpc_reset(g);
    for (at = 0; at < n; at += piece) {
        if (grpc_feed(g, data + at, n - at < piece ? n - at : piece) > GRPC_CLOSED) abort();
        if (g->reply_len > GRPC_REPLY_SIZE) abort();
    }
    grpc_eof(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static grpc_answer whole, cut;
    if (n < 1) return 0;
    read_all(&whole, data + 1, n - 1, n);
    read_all(&cut, data + 1, n - 1, 1 + data[0] % 16);
    if (whole.verdict == GRPC_MORE || whole.verdict != cut.verdict || whole.detail != cut.detail) abort();
    if (whole.headers.table_size > HPACK_TABLE_SIZE || whole.headers.entries > HPACK_ENTRIES) abort();
    return 0;
}
