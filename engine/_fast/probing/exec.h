/* Reads the response of a CRI ExecSync in pieces of any size: the exit code, and the beginning of the command's
 * output (stdout, then stderr).  The caller provides the buffer for the output; nothing else is stored. */
#ifndef KUBENGINE_PROBING_EXEC_H
#define KUBENGINE_PROBING_EXEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXEC_OUTPUT_LIMIT 10240 /* the kubelet's maxReadLength, pkg/probe/exec */

enum { EXEC_STDOUT = 1, EXEC_STDERR = 2, EXEC_EXIT_CODE = 3 };

typedef struct {
    char *output;    /* room for EXEC_OUTPUT_LIMIT bytes */
    uint64_t number; /* the varint being read */
    uint64_t left;   /* bytes left of the current field */
    uint32_t output_len, field;
    int32_t exit_code;
    uint8_t shift, in_value, wire, broken;
} exec_reader;

static inline void exec_reset(exec_reader *e, char *output) {
    memset(e, 0, sizeof *e);
    e->output = output;
}

static inline void exec_bytes(exec_reader *e, const uint8_t *data, size_t n) {
    size_t room = EXEC_OUTPUT_LIMIT - e->output_len;
    if (e->field != EXEC_STDOUT && e->field != EXEC_STDERR) return;
    if (e->wire != 2) return;
    if (room > n) room = n;
    memcpy(e->output + e->output_len, data, room);
    e->output_len += (uint32_t)room;
}

/* Handle a complete key or value. */
static inline void exec_number(exec_reader *e, uint64_t number) {
    if (e->in_value) {
        e->in_value = 0;
        if (e->wire == 2)
            e->left = number;
        else if (e->field == EXEC_EXIT_CODE)
            e->exit_code = (int32_t)(uint32_t)number;
        return;
    }
    e->wire = (uint8_t)(number & 7);
    e->field = number >> 3 > UINT32_MAX ? UINT32_MAX : (uint32_t)(number >> 3);
    e->in_value = e->wire == 0 || e->wire == 2;
    e->left = e->wire == 1 ? 8 : e->wire == 5 ? 4 : 0;
    if (e->field == 0 || !(e->in_value || e->left)) e->broken = 1;
}

static inline void exec_feed(exec_reader *e, const uint8_t *data, size_t n) {
    while (n > 0 && !e->broken) {
        if (e->left > 0) {
            size_t take = n < e->left ? n : (size_t)e->left;
            exec_bytes(e, data, take);
            e->left -= take;
            data += take;
            n -= take;
            continue;
        }
        e->number |= (uint64_t)(*data & 0x7f) << e->shift;
        if (*data & 0x80) {
            e->shift = (uint8_t)(e->shift + 7);
            e->broken = e->shift > 63;
        } else {
            uint64_t number = e->number;
            e->number = 0;
            e->shift = 0;
            exec_number(e, number);
        }
        data++;
        n--;
    }
}

/* Whether the message is complete here. */
static inline int exec_whole(const exec_reader *e) {
    return !e->broken && e->left == 0 && e->shift == 0 && !e->in_value;
}

#endif
