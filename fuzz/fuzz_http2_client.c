/* The first byte is the length of the pieces; the rest are a server's bytes on a connection with a few open
 * streams, one of which was cancelled. */
#include <stdlib.h>

#include "../http2/client.h"

#define STREAMS 4
#define ROOM 8192

typedef struct {
    http2 core;
    http2_stream streams[STREAMS];
    hpack_table table;
    char scratch[ROOM];
    uint64_t told, read; /* checksums of the output: of events in order, of data by position and stream */
    uint32_t sizes[2 * STREAMS];
} reader;

static void mix(uint64_t *sum, uint64_t with) { *sum = (*sum ^ with) * 1099511628211u; }

static void heed(reader *r, const http2_event *e) {
    size_t i;
    if (e->kind == HTTP2_DATA) {
        if (e->stream >= 2 * STREAMS || !e->size) abort();
        for (i = 0; i < e->size; i++)
            r->read += (e->data[i] + 1u) * 2654435761u * (e->stream + 64ull * ++r->sizes[e->stream]);
        http2_take(&r->core, e->stream, (uint32_t)e->size);
        return;
    }
    mix(&r->told, e->kind);
    mix(&r->told, e->stream);
    mix(&r->told, e->code);
    mix(&r->told, e->last);
    if (e->kind != HTTP2_FIELD) return;
    for (i = 0; i < e->field->name_len; i++) mix(&r->told, (uint8_t)e->field->name[i]);
    for (i = 0; i < e->field->value_len; i++) mix(&r->told, (uint8_t)e->field->value[i]);
}

static void read_all(reader *r, const uint8_t *data, size_t n, size_t piece) {
    uint8_t answers[100];
    size_t at, used, left;
    int i;
    memset(r, 0, sizeof *r);
    http2_reset(&r->core, r->streams, STREAMS, WINDOW_DEFAULT, WINDOW_DEFAULT, &r->table, r->scratch, ROOM);
    r->core.list_limit = ROOM;
    for (i = 0; i < STREAMS; i++) http2_sent(&r->core, http2_open(&r->core), 0, i != 1);
    http2_remove_stream(&r->core, 5);
    for (at = 0; at < n && !r->core.broken; at += piece) {
        const uint8_t *now = data + at;
        http2_event event;
        for (left = n - at < piece ? n - at : piece;
             http2_receive(&r->core, now, left, &used, &event) != HTTP2_MORE; now += used, left -= used) {
            heed(r, &event);
            if (event.kind == HTTP2_BROKEN) break;
        }
        if (r->core.open > STREAMS || r->core.pings > HTTP2_PINGS) abort();
        if (r->core.headers.table_size > HPACK_TABLE_SIZE || r->core.headers.entries > HPACK_ENTRIES) abort();
        if (r->core.headers.text_len > HPACK_TABLE_SIZE || r->core.headers.kept > ROOM) abort();
    }
    for (i = 0; i < 1000 && (used = http2_write_answers(&r->core, answers, sizeof answers)) > 0; i++)
        if (used > sizeof answers) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static reader whole, cut;
    if (n < 1) return 0;
    read_all(&whole, data + 1, n - 1, n);
    read_all(&cut, data + 1, n - 1, 1 + data[0] % 16);
    if (whole.told != cut.told || whole.read != cut.read || whole.core.open != cut.core.open) abort();
    return 0;
}
