/* The bytes are numbers, in lines of metrics and in members of JSON objects; what is written must fit its bound. */
#include <stdlib.h>

#include "../writing/members.h"

#define ROWS 16

/* All values in order, each second one, or those at rows, some of which do not exist. */
static e_values picked(const int64_t *values, int64_t *rows, int64_t count, uint8_t choice) {
    const ptrdiff_t one = sizeof *values;
    if (choice % 3 == 0) return (e_values){(const char *)values, one, NULL};
    if (choice % 3 == 1 && 2 * count <= ROWS) return (e_values){(const char *)values, 2 * one, NULL};
    for (int64_t i = 0; i < count; i++) rows[i] = (i * 7 + choice) % (ROWS + 1) - 1;
    return (e_values){(const char *)values, one, rows};
}

static void write_lines(const int64_t *values, int64_t rows, uint8_t choice) {
    int64_t ends[ROWS], at[ROWS], i;
    e_series series = {.heading = {"# h\n", 4},
                       .opening = {"m{l=\"", 5},
                       .ending = {" 1", 2},
                       .labels = "abcdefghijklmnop",
                       .ends = ends,
                       .values = picked(values, at, rows, choice),
                       .count = rows,
                       .point = choice % 19};
    for (i = 0; i < rows; i++) ends[i] = i + 1;
    size_t most = e_most(&series, e_longest(ends, rows, ROWS));
    while (series.next < series.count) { /* one line at a time, in memory of its bound */
        char *line = malloc(most);
        if (!line) abort();
        char *end = e_lines(&series, line, line + 1);
        if ((size_t)(end - line) > most) abort();
        free(line);
    }
}

static void write_members(const int64_t *values, int64_t rows, const uint8_t *steps, size_t count) {
    static m_form form;
    int64_t row, at[ROWS];
    int depth = 0;
    form.count = 0;
    form.rows = rows;
    for (size_t i = 0; i < count && form.count < M_MOST_STEPS - depth - 1; i++) {
        m_step *step = &form.steps[form.count];
        int kind = steps[i] % 23 - 3; /* M_MOMENT to 18 digits after the point; 19 is M_OPEN too */
        if (kind == M_CLOSE && !depth) continue;
        *step =
            (m_step){{"\"name\":", 7}, picked(values, at, rows, steps[i] / 23), kind == 19 ? M_OPEN : kind};
        if (step->form == M_OPEN) step->text = (e_text){"\"o\":{", 5};
        depth += (step->form == M_OPEN) - (step->form == M_CLOSE);
        form.count++;
    }
    while (depth-- > 0) form.steps[form.count++] = (m_step){{"", 0}, {NULL, 0, NULL}, M_CLOSE};
    for (row = 0; row < rows; row++) {
        size_t most = m_most(&form);
        char *text = malloc(most + 1);
        if (!text) abort();
        char *end = m_members(text, text, &form, row);
        if ((size_t)(end - text) > most) abort();
        free(text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    int64_t values[ROWS], rows;
    if (n < 2) return 0;
    rows = 1 + data[0] % ROWS;
    memset(values, 0, sizeof values);
    memcpy(values, data + 2, n - 2 < sizeof values ? n - 2 : sizeof values);
    write_lines(values, rows, data[1]);
    if (n > 2 + sizeof values) write_members(values, rows, data + 2 + sizeof values, n - 2 - sizeof values);
    return 0;
}
