/* Members of JSON objects. members.py describes them. */
#pragma once

#include "exposition.h"

enum { M_OPEN = -1, M_CLOSE = -2, M_MOMENT = -3, M_MOST_STEPS = 128, M_MOMENT_BYTES = 22 };
#define M_LAST_SECOND 253402300799

typedef struct {
    e_text text;
    e_values values;
    int form;
} m_step;

typedef struct {
    m_step steps[M_MOST_STEPS];
    int count;
    int64_t rows;
} m_form;

/* The maximum size of the members of a form. */
static size_t m_most(const m_form *form) {
    size_t most = 0;
    for (int i = 0; i < form->count; i++) most += form->steps[i].text.length + 1 + E_DIGITS;
    return most;
}

static char *m_two(char *out, unsigned value) {
    memcpy(out, e_pairs + 2 * value, 2);
    return out + 2;
}

/* RFC 3339 in quotes. Years start in March here, so that a leap day is the last day of a year. */
static char *m_moment(char *out, int64_t second) {
    if (second < 0) second = 0;
    if (second > M_LAST_SECOND) second = M_LAST_SECOND;
    const unsigned of_day = (unsigned)(second % 86400);
    const unsigned days = (unsigned)(second / 86400) + 719468; /* since March 1st of the year 0 */
    /* 400 years have 146,097 days, after which the calendar repeats. */
    const unsigned era = days / 146097, of_era = days % 146097;
    const unsigned year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const unsigned of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    const unsigned from_march = (5 * of_year + 2) / 153;
    const unsigned day = of_year - (153 * from_march + 2) / 5 + 1;
    const unsigned month = from_march < 10 ? from_march + 3 : from_march - 9;
    const unsigned year = year_of_era + era * 400 + (month <= 2);
    *out++ = '"';
    out = m_two(m_two(out, year / 100), year % 100);
    *out++ = '-';
    out = m_two(out, month);
    *out++ = '-';
    out = m_two(out, day);
    *out++ = 'T';
    out = m_two(out, of_day / 3600);
    *out++ = ':';
    out = m_two(out, of_day / 60 % 60);
    *out++ = ':';
    out = m_two(out, of_day % 60);
    *out++ = 'Z';
    *out++ = '"';
    return out;
}

/* Appends a step's text, number or time to the text that begins at `start`. */
static char *m_step_out(char *out, const char *start, const m_step *step, int64_t row) {
    if (out > start && out[-1] != '{') *out++ = ',';
    out = e_put(out, step->text);
    if (step->form == M_OPEN) return out;
    const int64_t value = e_value(&step->values, row);
    return step->form == M_MOMENT ? m_moment(out, value) : e_number(out, value, step->form);
}

static char *m_pending_out(char *out, const char *start, const m_form *form, int64_t row, const int *pending,
                           int *count) {
    for (int i = 0; i < *count; i++) out = m_step_out(out, start, &form->steps[pending[i]], row);
    *count = 0;
    return out;
}

/* Appends the members of a form to the text that begins at `start`. */
static char *m_members(char *out, const char *start, const m_form *form, int64_t row) {
    /* Objects and times wait for a number to follow: an object without numbers, and a time of nothing, are left
       out. */
    int pending[M_MOST_STEPS], count = 0, opened = 0; /* the number of pending objects */
    for (int i = 0; i < form->count; i++) {
        const m_step *step = &form->steps[i];
        if (step->form == M_OPEN) {
            pending[count++] = i;
            opened++;
        } else if (step->form == M_CLOSE && opened) {
            while (form->steps[pending[--count]].form != M_OPEN) {
            }
            opened--;
        } else if (step->form == M_CLOSE) {
            out = m_pending_out(out, start, form, row, pending, &count);
            *out++ = '}';
        } else if (e_value(&step->values, row) != E_ABSENT) {
            if (step->form == M_MOMENT) {
                pending[count++] = i;
            } else {
                out = m_pending_out(out, start, form, row, pending, &count);
                opened = 0;
                out = m_step_out(out, start, step, row);
            }
        }
    }
    return m_pending_out(out, start, form, row, pending, &count);
}
