/* HPACK (RFC 7541).  Reading: header blocks in pieces of any size, one field at a time; the dynamic table is as
 * large as the standard's default, in memory of the caller.  Writing: only from the static table and literals,
 * so that a block does not depend on earlier ones and can be stored and sent again. */
#ifndef KUBENGINE_HTTP2_HPACK_H
#define KUBENGINE_HTTP2_HPACK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "huffman.h"
#include "static_table.h"

#define HPACK_TABLE_SIZE 4096
#define HPACK_ENTRY_OVERHEAD 32
#define HPACK_ENTRIES (HPACK_TABLE_SIZE / HPACK_ENTRY_OVERHEAD)
#define HPACK_INTEGER_LIMIT (1u << 24)

enum hpack_verdict { HPACK_REFUSED = 0, HPACK_TAKEN = 1, HPACK_FIELD = 2 };
enum hpack_at { HPACK_OPCODE, HPACK_INTEGER, HPACK_LENGTH, HPACK_STRING };
enum hpack_want { WANT_INDEX, WANT_NAME_INDEX, WANT_RESIZE, WANT_NAME_LENGTH, WANT_VALUE_LENGTH };

/* Name and value; truncated if they exceed the space. */
typedef struct {
    const char *name, *value;
    uint32_t name_len, value_len;
} hpack_field;

typedef struct {
    uint16_t name_len, value_len;
} hpack_entry;

/* The dynamic table: texts end to end, oldest first. */
typedef struct {
    hpack_entry entries[HPACK_ENTRIES];
    char text[HPACK_TABLE_SIZE];
} hpack_table;

typedef struct {
    uint32_t integer, shift;
    uint32_t left;                /* of the string being read */
    uint32_t length;              /* decoded bytes of it */
    uint32_t name_len, value_len; /* decoded, whether stored or not */
    uint32_t name_kept, kept;     /* bytes in `scratch`: of the name, of both */
    uint32_t table_size, table_max, text_len, entries, room;
    uint8_t at, want, adds, coded, in_value, resizable;
    huffman code;
    hpack_table *table;
    char *scratch; /* `room` bytes */
    hpack_field field;
} hpack;

/* `scratch` holds the field that is being read: HPACK_TABLE_SIZE bytes or more. */
static inline void hpack_reset(hpack *h, hpack_table *table, char *scratch, uint32_t room) {
    memset(h, 0, sizeof *h);
    h->table = table;
    h->scratch = scratch;
    h->room = room;
    h->table_max = HPACK_TABLE_SIZE;
    h->resizable = 1;
}

/* Evict the oldest entries until `room` bytes are free. */
static inline void hpack_evict(hpack *h, uint32_t room) {
    uint32_t gone = 0, text = 0;
    while (gone < h->entries && h->table_size + room > h->table_max) {
        const hpack_entry *oldest = &h->table->entries[gone++];
        text += (uint32_t)oldest->name_len + oldest->value_len;
        h->table_size -= (uint32_t)oldest->name_len + oldest->value_len + HPACK_ENTRY_OVERHEAD;
    }
    if (!gone) return;
    h->entries -= gone;
    h->text_len -= text;
    memmove(h->table->entries, h->table->entries + gone, h->entries * sizeof(hpack_entry));
    memmove(h->table->text, h->table->text + text, h->text_len);
}

static inline void hpack_remember(hpack *h) {
    uint64_t size = (uint64_t)h->name_len + h->value_len + HPACK_ENTRY_OVERHEAD;
    hpack_entry *entry;
    hpack_evict(h, size > h->table_max ? h->table_max + 1 : (uint32_t)size);
    if (size > h->table_max) return;
    entry = &h->table->entries[h->entries++];
    entry->name_len = (uint16_t)h->name_len;
    entry->value_len = (uint16_t)h->value_len;
    memcpy(h->table->text + h->text_len, h->scratch, h->name_len + h->value_len);
    h->text_len += h->name_len + h->value_len;
    h->table_size += (uint32_t)size;
}

/* The entry of an index into `h->field`.  0 = there is none. */
static inline int hpack_look_up(hpack *h, uint32_t index) {
    uint32_t i, at = h->text_len;
    if (index == 0 || index - 1 >= HPACK_STATIC + h->entries) return 0;
    if (index <= HPACK_STATIC) {
        h->field.name = HPACK_STATIC_TABLE[index - 1].name;
        h->field.name_len = HPACK_STATIC_TABLE[index - 1].name_len;
        h->field.value = HPACK_STATIC_TABLE[index - 1].value;
        h->field.value_len = HPACK_STATIC_TABLE[index - 1].value_len;
        return 1;
    }
    for (i = h->entries; i > h->entries - (index - HPACK_STATIC); i--)
        at -= (uint32_t)h->table->entries[i - 1].name_len + h->table->entries[i - 1].value_len;
    h->field.name = h->table->text + at;
    h->field.name_len = h->table->entries[i].name_len;
    h->field.value = h->field.name + h->field.name_len;
    h->field.value_len = h->table->entries[i].value_len;
    return 1;
}

static inline void hpack_begin_string(hpack *h, uint8_t in_value) {
    h->in_value = in_value;
    h->want = in_value ? WANT_VALUE_LENGTH : WANT_NAME_LENGTH;
    h->at = HPACK_LENGTH;
}

static inline int hpack_end_string(hpack *h) {
    if (!h->in_value) {
        h->name_len = h->length;
        h->name_kept = h->kept;
        hpack_begin_string(h, 1);
        return HPACK_TAKEN;
    }
    h->value_len = h->length;
    if (h->adds) hpack_remember(h);
    h->field.name = h->scratch;
    h->field.name_len = h->name_kept;
    h->field.value = h->scratch + h->name_kept;
    h->field.value_len = h->kept - h->name_kept;
    h->at = HPACK_OPCODE;
    return HPACK_FIELD;
}

static inline void hpack_symbol(hpack *h, uint8_t c) {
    if (h->kept < h->room) h->scratch[h->kept++] = (char)c;
    h->length++;
}

static inline int hpack_huffman_byte(hpack *h, uint8_t c) {
    int bit;
    for (bit = 7; bit >= 0; bit--) {
        int symbol = huffman_bit(&h->code, c >> bit & 1u);
        if (symbol == HUFFMAN_REFUSED) return 0;
        if (symbol >= 0) hpack_symbol(h, (uint8_t)symbol);
    }
    return 1;
}

/* An integer is complete. */
static inline int hpack_integer(hpack *h) {
    uint32_t n = h->integer;
    switch (h->want) {
    case WANT_RESIZE:
        if (n > HPACK_TABLE_SIZE) return HPACK_REFUSED;
        h->table_max = n;
        hpack_evict(h, 0);
        h->at = HPACK_OPCODE;
        return HPACK_TAKEN;
    case WANT_INDEX: h->at = HPACK_OPCODE; return hpack_look_up(h, n) ? HPACK_FIELD : HPACK_REFUSED;
    case WANT_NAME_INDEX:
        h->kept = 0;
        if (n == 0) {
            hpack_begin_string(h, 0);
            return HPACK_TAKEN;
        }
        if (!hpack_look_up(h, n)) return HPACK_REFUSED;
        memcpy(h->scratch, h->field.name, h->field.name_len);
        h->kept = h->name_kept = h->name_len = h->field.name_len;
        hpack_begin_string(h, 1);
        return HPACK_TAKEN;
    default:
        h->left = n;
        h->length = 0;
        huffman_reset(&h->code);
        h->at = HPACK_STRING;
        return n == 0 ? hpack_end_string(h) : HPACK_TAKEN;
    }
}

static inline int hpack_prefix(hpack *h, uint8_t c, uint8_t bits) {
    uint32_t mask = (1u << bits) - 1;
    h->integer = c & mask;
    h->shift = 0;
    if (h->integer < mask) return hpack_integer(h);
    h->at = HPACK_INTEGER;
    return HPACK_TAKEN;
}

/* Read one byte of a header block.  HPACK_FIELD: `field` holds a field, until the next byte. */
static inline int hpack_byte(hpack *h, uint8_t c) {
    switch (h->at) {
    case HPACK_OPCODE:
        if ((c & 0xe0) == 0x20) {
            if (!h->resizable) return HPACK_REFUSED;
            h->want = WANT_RESIZE;
            return hpack_prefix(h, c, 5);
        }
        h->resizable = 0;
        h->want = c & 0x80 ? WANT_INDEX : WANT_NAME_INDEX;
        h->adds = (c & 0xc0) == 0x40;
        return hpack_prefix(h, c, c & 0x80 ? 7 : h->adds ? 6 : 4);
    case HPACK_INTEGER:
        if (h->shift > 21) return HPACK_REFUSED;
        h->integer += (uint32_t)(c & 0x7f) << h->shift;
        h->shift += 7;
        if (h->integer > HPACK_INTEGER_LIMIT) return HPACK_REFUSED;
        return c & 0x80 ? HPACK_TAKEN : hpack_integer(h);
    case HPACK_LENGTH: h->coded = c >> 7; return hpack_prefix(h, c, 7);
    default: /* HPACK_STRING */
        if (!h->coded)
            hpack_symbol(h, c);
        else if (!hpack_huffman_byte(h, c))
            return HPACK_REFUSED;
        if (--h->left > 0) return HPACK_TAKEN;
        return h->coded && !huffman_may_end(&h->code) ? HPACK_REFUSED : hpack_end_string(h);
    }
}

/* End the block.  Returns 0 in the middle of a field. */
static inline int hpack_end_block(hpack *h) {
    h->resizable = 1;
    return h->at == HPACK_OPCODE;
}

/* Writing */

#define HPACK_FIELD_OVERHEAD 12 /* maximum size of a written field without its texts */

static inline size_t hpack_write_integer(uint8_t *out, uint8_t first, uint8_t bits, uint32_t n) {
    uint32_t mask = (1u << bits) - 1;
    size_t at = 1;
    if (n < mask) {
        out[0] = (uint8_t)(first | n);
        return at;
    }
    out[0] = (uint8_t)(first | mask);
    for (n -= mask; n >= 0x80; n >>= 7) out[at++] = (uint8_t)(n & 0x7f) | 0x80;
    out[at++] = (uint8_t)n;
    return at;
}

static inline size_t hpack_write_string(uint8_t *out, const char *text, uint32_t len) {
    size_t at = hpack_write_integer(out, 0, 7, len);
    memcpy(out + at, text, len);
    return at + len;
}

/* Write one field; a `secret` one is marked as never indexed.  Returns its size. */
static inline size_t hpack_write(uint8_t *out, hpack_field f, int secret) {
    uint32_t i, index = 0;
    size_t at;
    for (i = HPACK_STATIC; i > 0; i--) {
        if (HPACK_STATIC_TABLE[i - 1].name_len != f.name_len) continue;
        if (memcmp(HPACK_STATIC_TABLE[i - 1].name, f.name, f.name_len) != 0) continue;
        index = i;
        if (!secret && HPACK_STATIC_TABLE[i - 1].value_len == f.value_len &&
            memcmp(HPACK_STATIC_TABLE[i - 1].value, f.value, f.value_len) == 0)
            return hpack_write_integer(out, 0x80, 7, i);
    }
    at = hpack_write_integer(out, secret ? 0x10 : 0, 4, index);
    if (!index) at += hpack_write_string(out + at, f.name, f.name_len);
    return at + hpack_write_string(out + at, f.value, f.value_len);
}

#endif
