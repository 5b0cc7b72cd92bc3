/* HPACK (RFC 7541) as far as a probe needs it: header blocks in pieces of any size, of which only :status,
 * grpc-status and the beginning of grpc-message are understood and nothing else is stored.  The dynamic table
 * keeps the size of each entry and, for the first two, the number; so a table of 4096 bytes is 128 small
 * entries.  A message that is repeated from the table is not told again. */
#ifndef KUBENGINE_PROBING_HPACK_H
#define KUBENGINE_PROBING_HPACK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* How many codes have each length, and the symbols in order of their codes (RFC 7541, appendix B; the code
 * is canonical, so lengths say everything). */
static const uint8_t HUFFMAN_COUNTS[31] = {
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4,
};
static const uint16_t HUFFMAN_SYMBOLS[257] = {
    48,  49,  50,  97,  99,  101, 105, 111, 115, 116, 32,  37,  45,  46,  47,  51,  52,  53,  54,  55,
    56,  57,  61,  65,  95,  98,  100, 102, 103, 104, 108, 109, 110, 112, 114, 117, 58,  66,  67,  68,
    69,  70,  71,  72,  73,  74,  75,  76,  77,  78,  79,  80,  81,  82,  83,  84,  85,  86,  87,  89,
    106, 107, 113, 118, 119, 120, 121, 122, 38,  42,  44,  59,  88,  90,  33,  34,  40,  41,  63,  39,
    43,  124, 35,  62,  0,   36,  64,  91,  93,  126, 94,  125, 60,  96,  123, 92,  195, 208, 128, 130,
    131, 162, 184, 194, 224, 226, 153, 161, 167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230, 129,
    132, 133, 134, 136, 146, 154, 156, 160, 163, 164, 169, 170, 173, 178, 181, 185, 186, 187, 189, 190,
    196, 198, 228, 232, 233, 1,   135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157,
    158, 165, 166, 168, 174, 175, 180, 182, 183, 188, 191, 197, 231, 239, 9,   142, 144, 145, 148, 159,
    171, 206, 215, 225, 236, 237, 199, 207, 234, 235, 192, 193, 200, 201, 202, 205, 210, 213, 218, 219,
    238, 240, 242, 243, 255, 203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250,
    251, 252, 253, 254, 2,   3,   4,   5,   6,   7,   8,   11,  12,  14,  15,  16,  17,  18,  19,  20,
    21,  23,  24,  25,  26,  27,  28,  29,  30,  31,  127, 220, 249, 10,  13,  22,  256,
};
/* Lengths of the static table's names (RFC 7541, appendix A); index 0 is unused. */
static const uint8_t HPACK_STATIC_NAMES[62] = {
    0, 10, 7,  7,  5,  5,  7,  7,  7,  7,  7,  7,  7, 7,  7,  14, 15, 15, 13, 6,  27,
    3, 5,  13, 13, 19, 16, 16, 14, 16, 13, 12, 6,  4, 4,  6,  7,  4,  4,  8,  17, 13,
    8, 19, 13, 4,  8,  12, 18, 19, 5,  7,  7,  11, 6, 10, 25, 17, 10, 4,  3,  16,
};

#define HPACK_TABLE_SIZE 4096
#define HPACK_ENTRIES 128
#define HPACK_TEXT_LIMIT 512
#define HPACK_INTEGER_LIMIT (1u << 24)

enum hpack_kind { HPACK_OTHER = 0, HPACK_STATUS = 1, HPACK_GRPC_STATUS = 2, HPACK_GRPC_MESSAGE = 3 };
enum hpack_at { HPACK_OPCODE, HPACK_INTEGER, HPACK_LENGTH, HPACK_STRING };
enum hpack_want { WANT_INDEX, WANT_NAME_INDEX, WANT_RESIZE, WANT_NAME_LENGTH, WANT_VALUE_LENGTH };

typedef struct {
    uint16_t size; /* name + value + 32 */
    uint16_t name_len;
    int32_t number; /* the value read as a decimal number, -1 if it is none */
    uint8_t kind;
} hpack_entry;

typedef struct {
    uint32_t integer, shift;
    uint32_t left;   /* of the string being read */
    uint32_t length; /* decoded bytes of it */
    uint32_t code;   /* Huffman bits not yet a symbol */
    int32_t number;
    uint32_t table_size, table_max;
    uint32_t name_len;
    uint16_t entries, newest, text_len;
    int32_t status;      /* last :status seen, -1 if none */
    int32_t grpc_status; /* last grpc-status seen, -1 if none */
    uint8_t at, want, kind, adds, huffman, code_len, in_value, resizable;
    char name[12];
    char text[HPACK_TEXT_LIMIT]; /* the last grpc-message, percent-encoded */
    hpack_entry table[HPACK_ENTRIES];
} hpack;

static inline void hpack_reset(hpack *h) {
    memset(h, 0, offsetof(hpack, text));
    h->table_max = HPACK_TABLE_SIZE;
    h->status = h->grpc_status = -1;
    h->resizable = 1;
}

static inline void hpack_evict(hpack *h, uint32_t room) {
    while (h->entries > 0 && h->table_size + room > h->table_max) {
        uint16_t oldest = (uint16_t)((h->newest + HPACK_ENTRIES - (h->entries - 1)) % HPACK_ENTRIES);
        h->table_size -= h->table[oldest].size;
        h->entries--;
    }
}

static inline hpack_entry *hpack_dynamic(hpack *h, uint32_t index) {
    if (index < 62 || index - 62 >= h->entries) return 0;
    return &h->table[(h->newest + HPACK_ENTRIES - (index - 62)) % HPACK_ENTRIES];
}

static inline void hpack_emit(hpack *h, uint8_t kind, int32_t number) {
    if (kind == HPACK_STATUS) h->status = number < 0 ? 0 : number;
    if (kind == HPACK_GRPC_STATUS) h->grpc_status = number < 0 ? 2 : number; /* unreadable = UNKNOWN */
}

static inline int hpack_indexed(hpack *h, uint32_t index) {
    static const int16_t statuses[] = {200, 204, 206, 304, 400, 404, 500};
    hpack_entry *entry = hpack_dynamic(h, index);
    if (index == 0 || (index > 61 && !entry)) return 0;
    if (entry && entry->kind == HPACK_GRPC_MESSAGE) h->text_len = 0;
    if (entry)
        hpack_emit(h, entry->kind, entry->number);
    else if (index >= 8 && index <= 14)
        hpack_emit(h, HPACK_STATUS, statuses[index - 8]);
    return 1;
}

static inline void hpack_begin_string(hpack *h, uint8_t in_value) {
    h->in_value = in_value;
    h->want = in_value ? WANT_VALUE_LENGTH : WANT_NAME_LENGTH;
    h->at = HPACK_LENGTH;
}

static inline void hpack_end_field(hpack *h) {
    hpack_emit(h, h->kind, h->number);
    if (h->kind == HPACK_GRPC_MESSAGE)
        h->text_len = (uint16_t)(h->length < HPACK_TEXT_LIMIT ? h->length : HPACK_TEXT_LIMIT);
    if (h->adds) {
        uint32_t size = h->name_len + h->length + 32;
        hpack_evict(h, size);
        if (size <= h->table_max) {
            h->newest = (uint16_t)((h->newest + 1) % HPACK_ENTRIES);
            h->table[h->newest].size = (uint16_t)size;
            h->table[h->newest].name_len = (uint16_t)h->name_len;
            h->table[h->newest].kind = h->kind;
            h->table[h->newest].number = h->number;
            h->entries++;
            h->table_size += size;
        }
    }
    h->at = HPACK_OPCODE;
}

static inline void hpack_end_string(hpack *h) {
    if (h->in_value) {
        hpack_end_field(h);
        return;
    }
    h->name_len = h->length;
    h->kind = h->length == 7 && memcmp(h->name, ":status", 7) == 0          ? HPACK_STATUS
              : h->length == 11 && memcmp(h->name, "grpc-status", 11) == 0  ? HPACK_GRPC_STATUS
              : h->length == 12 && memcmp(h->name, "grpc-message", 12) == 0 ? HPACK_GRPC_MESSAGE
                                                                            : HPACK_OTHER;
    hpack_begin_string(h, 1);
}

static inline void hpack_symbol(hpack *h, uint8_t c) {
    if (!h->in_value) {
        if (h->length < sizeof h->name) h->name[h->length] = (char)c;
    } else if (h->kind == HPACK_GRPC_MESSAGE) {
        if (h->length < HPACK_TEXT_LIMIT) h->text[h->length] = (char)c;
    } else if (c < '0' || c > '9' || h->number < -1 || h->length >= 6) {
        h->number = -2;
    } else {
        h->number = (h->number < 0 ? 0 : h->number) * 10 + (c - '0');
    }
    h->length++;
}

static inline int hpack_huffman_byte(hpack *h, uint8_t c) {
    int bit, len;
    for (bit = 7; bit >= 0; bit--) {
        uint32_t first = 0, offset = 0;
        h->code = h->code << 1 | (uint32_t)(c >> bit & 1);
        if (++h->code_len > 30) return 0;
        if (h->code_len < 5) continue;
        for (len = 1; len < h->code_len; len++) {
            first = (first + HUFFMAN_COUNTS[len]) << 1;
            offset += HUFFMAN_COUNTS[len];
        }
        if (h->code >= first && h->code - first < HUFFMAN_COUNTS[len]) {
            uint16_t symbol = HUFFMAN_SYMBOLS[offset + h->code - first];
            if (symbol == 256) return 0;
            hpack_symbol(h, (uint8_t)symbol);
            h->code = 0;
            h->code_len = 0;
        }
    }
    return 1;
}

/* An integer is complete.  0 = refuse the block. */
static inline int hpack_integer(hpack *h) {
    uint32_t n = h->integer;
    hpack_entry *entry;
    switch (h->want) {
    case WANT_RESIZE:
        if (n > HPACK_TABLE_SIZE) return 0;
        h->table_max = n;
        hpack_evict(h, 0);
        h->at = HPACK_OPCODE;
        return 1;
    case WANT_INDEX: h->at = HPACK_OPCODE; return hpack_indexed(h, n);
    case WANT_NAME_INDEX:
        if (n == 0) {
            hpack_begin_string(h, 0);
            return 1;
        }
        entry = hpack_dynamic(h, n);
        if (n > 61 && !entry) return 0;
        h->kind = entry ? entry->kind : n >= 8 && n <= 14 ? HPACK_STATUS : HPACK_OTHER;
        h->name_len = entry ? entry->name_len : HPACK_STATIC_NAMES[n];
        hpack_begin_string(h, 1);
        return 1;
    default:
        h->left = n;
        h->length = 0;
        h->code = 0;
        h->code_len = 0;
        h->number = -1;
        h->at = HPACK_STRING;
        if (n == 0) hpack_end_string(h);
        return 1;
    }
}

static inline int hpack_prefix(hpack *h, uint8_t c, uint8_t bits) {
    uint32_t mask = (1u << bits) - 1;
    h->integer = c & mask;
    h->shift = 0;
    if (h->integer < mask) return hpack_integer(h);
    h->at = HPACK_INTEGER;
    return 1;
}

/* One byte of a header block.  0 = the block is not HPACK. */
static inline int hpack_byte(hpack *h, uint8_t c) {
    switch (h->at) {
    case HPACK_OPCODE:
        if ((c & 0xe0) == 0x20) {
            if (!h->resizable) return 0;
            h->want = WANT_RESIZE;
            return hpack_prefix(h, c, 5);
        }
        h->resizable = 0;
        h->want = c & 0x80 ? WANT_INDEX : WANT_NAME_INDEX;
        h->adds = (c & 0xc0) == 0x40;
        return hpack_prefix(h, c, c & 0x80 ? 7 : h->adds ? 6 : 4);
    case HPACK_INTEGER:
        if (h->shift > 21) return 0;
        h->integer += (uint32_t)(c & 0x7f) << h->shift;
        h->shift += 7;
        if (h->integer > HPACK_INTEGER_LIMIT) return 0;
        return c & 0x80 ? 1 : hpack_integer(h);
    case HPACK_LENGTH: h->huffman = c >> 7; return hpack_prefix(h, c, 7);
    default: /* HPACK_STRING */
        if (!h->huffman)
            hpack_symbol(h, c);
        else if (!hpack_huffman_byte(h, c))
            return 0;
        if (--h->left == 0) {
            /* What is left of a code must be the beginning of end-of-string: fewer than 8 ones. */
            if (h->code_len > 7 || h->code != (1u << h->code_len) - 1) return 0;
            hpack_end_string(h);
        }
        return 1;
    }
}

/* The block ended.  0 = in the middle of a field. */
static inline int hpack_end_block(hpack *h) {
    h->resizable = 1;
    return h->at == HPACK_OPCODE;
}

#endif
