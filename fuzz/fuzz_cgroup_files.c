/* Pieces, ended by a zero byte, are files of cgroups, read one after the other into the row of one group.  The first
 * byte of a piece says which file it is, and of which version. */
#include "../reading/groups.h"
#include "../reading/descriptors.h"

#define FILES_V1 (sizeof g_v1 / sizeof *g_v1 - 1)
#define FILES_V2 (sizeof g_v2 / sizeof *g_v2 - 1)

static void read_file(const uint8_t *data, size_t n, int64_t *row, g_ios *ios) {
    const g_file *file = data[0] & 1 ? &g_v1[(data[0] >> 1) % FILES_V1] : &g_v2[(data[0] >> 1) % FILES_V2];
    char *copy = malloc(n); /* of its exact size, so that a byte read behind it is found */
    size_t i;
    if (!copy) abort();
    memcpy(copy, data + 1, n - 1);
    g_take(file, (g_text){copy, copy + n - 1}, 10000000, row, ios, 0, 7);
    int64_t limit = d_open_files_limit(copy, (ssize_t)(n - 1));
    if (limit < -1 && limit != D_ABSENT) abort();
    for (i = 0; i < ios->used; i++)
        if (ios->rows[i].row != 7) abort();
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    int64_t row[G_WIDTH];
    g_ios ios = {0};
    g_clear(row);
    while (n) {
        const uint8_t *end = memchr(data, 0, n);
        size_t size = end ? (size_t)(end - data) : n;
        if (size) read_file(data, size, row, &ios);
        data += size + (end != 0);
        n -= size + (end != 0);
    }
    g_settled(row);
    g_clear_set(row);
    free(ios.rows);
    return 0;
}
