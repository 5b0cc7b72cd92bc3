/* Lines of Prometheus' text format. exposition.py describes them. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { E_DIGITS = 24 };
#define E_ABSENT INT64_MIN

typedef struct {
    const char *at;
    size_t length;
} e_text;

typedef struct {
    const char *at;
    ptrdiff_t step;      /* bytes from one value to the next */
    const int64_t *rows; /* all values in order if there are none; nothing stands at a negative row */
} e_values;

static inline int64_t e_value(const e_values *values, int64_t i) {
    if (values->rows) i = values->rows[i];
    int64_t value = E_ABSENT;
    if (i >= 0) memcpy(&value, values->at + i * values->step, sizeof value);
    return value;
}

typedef struct {
    e_text heading, opening, ending;
    const char *labels;
    const int64_t *ends, *picked; /* the i-th label if nothing is picked */
    e_values values;
    int64_t count, next;
    int point;
} e_series;

/* The length of the longest label, -1 if their ends decrease or exceed `length`. */
static int64_t e_longest(const int64_t *ends, int64_t count, int64_t length) {
    int64_t begin = 0, longest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (ends[i] < begin || ends[i] > length) return -1;
        if (ends[i] - begin > longest) longest = ends[i] - begin;
        begin = ends[i];
    }
    return longest;
}

static int e_all_within(const int64_t *values, int64_t count, int64_t first, int64_t limit) {
    for (int64_t i = 0; i < count; i++)
        if (values[i] < first || values[i] >= limit) return 0;
    return 1;
}

/* The maximum size of a heading and of a line. */
static size_t e_most(const e_series *series, int64_t longest) {
    const size_t brace_blank_and_newline = 3;
    return series->heading.length + series->opening.length + (size_t)longest + brace_blank_and_newline +
           E_DIGITS + series->ending.length;
}

static char *e_put(char *out, e_text text) {
    memcpy(out, text.at, text.length);
    return out + text.length;
}

static const char e_pairs[] =
    "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
    "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
    "8081828384858687888990919293949596979899";

/* Writes the digits of a value before `end`; returns their start. */
static char *e_digits(uint64_t value, char *end) {
    for (; value >= 100; value /= 100) {
        end -= 2;
        memcpy(end, e_pairs + 2 * (value % 100), 2);
    }
    if (value >= 10) {
        end -= 2;
        memcpy(end, e_pairs + 2 * value, 2);
    } else {
        *--end = (char)('0' + value);
    }
    return end;
}

static char *e_number(char *out, int64_t value, int point) {
    static const uint64_t powers[] = {1,
                                      10,
                                      100,
                                      1000,
                                      10000,
                                      100000,
                                      1000000,
                                      10000000,
                                      100000000,
                                      1000000000,
                                      10000000000,
                                      100000000000,
                                      1000000000000,
                                      10000000000000,
                                      100000000000000,
                                      1000000000000000,
                                      10000000000000000,
                                      100000000000000000,
                                      1000000000000000000};
    char digits[E_DIGITS], *const end = digits + E_DIGITS;
    uint64_t whole = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0) *out++ = '-';
    uint64_t part = whole % powers[point];
    char *begin = e_digits(whole / powers[point], end);
    memcpy(out, begin, (size_t)(end - begin));
    out += end - begin;
    /* Go writes 1.5 and not 1.500: no point without a fraction, and no zeros at its end. */
    if (!part) return out;
    begin = e_digits(part, end);
    *out++ = '.';
    for (int64_t zeros = point - (end - begin); zeros > 0; zeros--) *out++ = '0';
    memcpy(out, begin, (size_t)(end - begin));
    out += end - begin;
    while (out[-1] == '0') out--;
    return out;
}

/* Writes lines of the series until it ends or `full` is reached; one more line fits after `full`. */
static char *e_lines(e_series *series, char *out, const char *full) {
    int64_t i = series->next;
    for (; i < series->count && out < full; i++) {
        const int64_t value = e_value(&series->values, i);
        if (value == E_ABSENT) continue;
        const int64_t label = series->picked ? series->picked[i] : i;
        const int64_t begin = label ? series->ends[label - 1] : 0;
        out = e_put(out, series->heading);
        series->heading.length = 0;
        out = e_put(out, series->opening);
        out = e_put(out, (e_text){series->labels + begin, (size_t)(series->ends[label] - begin)});
        *out++ = '}';
        *out++ = ' ';
        out = e_number(out, value, series->point);
        out = e_put(out, series->ending);
        *out++ = '\n';
    }
    series->next = i;
    return out;
}
