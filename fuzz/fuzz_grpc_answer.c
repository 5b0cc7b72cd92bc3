/* The first byte is the length of the pieces; its two highest bits select an exec or a GET.  The rest are the
 * server's bytes. */
#include <stdlib.h>

#include "grpc.h"

static void read_all(grpc_answer *g, uint8_t call, char *output, const uint8_t *data, size_t n,
                     size_t piece) {
    static grpc_buffers room;
    uint8_t reply[GRPC_REPLY_SIZE];
    size_t at;
    grpc_reset(g, call, &room, output);
    for (at = 0; at < n; at += piece) {
        if (grpc_feed(g, data + at, n - at < piece ? n - at : piece) > GRPC_CLOSED) abort();
        if (grpc_reply(g, reply) > sizeof reply) abort();
    }
    grpc_eof(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static grpc_answer whole, cut;
    char *outputs[] = {malloc(EXEC_OUTPUT_LIMIT), malloc(EXEC_OUTPUT_LIMIT)};
    uint8_t call = n && data[0] & 0x80 ? GRPC_EXEC : n && data[0] & 0x40 ? GRPC_GET : GRPC_HEALTH;
    uint32_t len, cut_len;
    const char *text, *cut_text;
    if (n < 1) goto end;
    read_all(&whole, call, outputs[0], data + 1, n - 1, n);
    read_all(&cut, call, outputs[1], data + 1, n - 1, 1 + data[0] % 16);
    text = grpc_text(&whole, &len);
    cut_text = grpc_text(&cut, &cut_len);
    if (len != cut_len || len > EXEC_OUTPUT_LIMIT || (len && memcmp(text, cut_text, len) != 0)) abort();
    if (whole.verdict == GRPC_MORE || whole.verdict != cut.verdict || whole.detail != cut.detail) abort();
    if (whole.connection.headers.table_size > HPACK_TABLE_SIZE || whole.connection.open > 1) abort();
end:
    free(outputs[0]);
    free(outputs[1]);
    return 0;
}
