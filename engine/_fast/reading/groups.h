/* Reads the files of cgroups. groups.py states the rules. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    G_MOST = 1 << 16,
    G_MOST_READS = 64,
    G_CONTROLLERS = 5,
    G_PRESSURE = 31,
    G_WIDTH = G_PRESSURE + 24,
    G_PATH = 4096
};
#define G_ABSENT INT64_MIN
/* v1 shows "no limit" as 2^63 rounded down to pages; the kubelet's isMemoryUnlimited draws the same line. */
#define G_NO_LIMIT ((int64_t)1 << 62)
#define G_TICK (-1)

enum {
    CPU,
    CPU_USER,
    CPU_SYSTEM,
    PERIODS,
    THROTTLED_PERIODS,
    THROTTLED,
    BURSTS,
    BURST,
    SHARES,
    QUOTA,
    PERIOD,
    MEMORY,
    MEMORY_LIMIT,
    MEMORY_PEAK,
    MEMORY_FAILURES,
    SWAP_LIMIT,
    INACTIVE_FILE,
    ACTIVE_FILE,
    RSS,
    CACHE,
    MAPPED,
    SWAP,
    FAULTS,
    MAJOR_FAULTS,
    OOM_KILLS,
    THREADS,
    THREADS_LIMIT,
    PROCESSES,
    FIRST_PROCESS,
    DIRTY,
    WRITEBACK
};

typedef struct {
    int64_t row, major, minor, moved[4];
} g_io;
typedef struct {
    g_io *rows;
    size_t used, capacity;
    int failed;
} g_ios;
typedef struct {
    const char *name;
    int column;
    int64_t factor;
} g_wanted;
typedef enum { G_NUMBER, G_WEIGHT, G_FLAT, G_MAX, G_PROCESSES, G_STALLED, G_IO_V1, G_IO_V2 } g_kind;
typedef enum { G_PULSE, G_MOVES, G_DRIFTS, G_IF_LIMITED, G_IF_OTHER_THREADS, G_SET } g_when;
typedef struct {
    g_when when;
    int controller;
    const char *name;
    const char *otherwise; /* read if the first is missing */
    g_kind kind;
    int column;
    const g_wanted *wanted;
    int limit; /* the column of the limit in effect, for G_IF_LIMITED */
} g_file;

typedef struct {
    const char *at, *end;
} g_text;

/* The next piece up to `mark`, which is consumed; 0 at the end. */
static int g_next(g_text *text, char mark, g_text *piece) {
    if (text->at >= text->end) return 0;
    const char *found = memchr(text->at, mark, (size_t)(text->end - text->at));
    piece->at = text->at;
    piece->end = found ? found : text->end;
    text->at = found ? found + 1 : text->end;
    return 1;
}

static int g_is(g_text text, const char *word) {
    size_t n = strlen(word);
    return (size_t)(text.end - text.at) == n && memcmp(text.at, word, n) == 0;
}

static int g_integer(g_text text, int64_t *value) {
    const char *at = text.at;
    int minus = at < text.end && *at == '-';
    at += minus;
    if (at >= text.end) return 0;
    int64_t sum = 0;
    for (; at < text.end; at++) {
        if (*at < '0' || *at > '9') return 0;
        if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, *at - '0', &sum))
            sum = INT64_MAX;
        if (sum == INT64_MAX) {
            for (; at < text.end; at++)
                if (*at < '0' || *at > '9') return 0;
            break;
        }
    }
    *value = minus ? -sum : sum;
    return 1;
}

static int64_t g_times(int64_t value, int64_t factor) {
    int64_t product;
    return __builtin_mul_overflow(value, factor, &product) ? (value < 0 ? -INT64_MAX : INT64_MAX) : product;
}

static void g_limit(g_text text, int64_t *out) {
    int64_t value;
    if (text.end > text.at && text.end[-1] == '\n') text.end--;
    if (g_integer(text, &value) && value < G_NO_LIMIT) *out = value;
}

static void g_flat(g_text text, const g_wanted *wanted, int64_t tick, int64_t *row) {
    g_text line, name;
    int64_t value;
    while (g_next(&text, '\n', &line)) {
        if (!g_next(&line, ' ', &name)) continue;
        for (const g_wanted *one = wanted; one->name; one++)
            if (g_is(name, one->name) && g_integer(line, &value))
                row[one->column] = g_times(value, one->factor == G_TICK ? tick : one->factor);
    }
}

/* The value of NAME=VALUE in a line, the last if there are several. */
static int g_pair(g_text line, const char *name, g_text *value) {
    g_text word, key;
    int found = 0;
    while (g_next(&line, ' ', &word)) {
        if (!memchr(word.at, '=', (size_t)(word.end - word.at)) || !g_next(&word, '=', &key)) continue;
        if (g_is(key, name)) {
            *value = word;
            found = 1;
        }
    }
    return found;
}

static int g_hundredths(g_text text, int64_t *value) {
    g_text whole;
    int64_t first, second;
    if (!g_next(&text, '.', &whole) || text.end - text.at != 2) return 0;
    if (!g_integer(whole, &first) || !g_integer(text, &second)) return 0;
    if (__builtin_add_overflow(g_times(first, 100), second, value)) *value = INT64_MAX;
    return 1;
}

static void g_stalled(g_text text, int64_t *row) {
    static const char *const averages[] = {"avg10", "avg60", "avg300"};
    g_text line, kind, value;
    int seen[2] = {0, 0};
    while (g_next(&text, '\n', &line)) {
        if (!g_next(&line, ' ', &kind)) continue;
        int full = g_is(kind, "full");
        if ((!full && !g_is(kind, "some")) || seen[full]) continue;
        seen[full] = 1;
        int64_t found[4];
        int whole = g_pair(line, "total", &value) && g_integer(value, &found[0]);
        for (int i = 0; i < 3 && whole; i++)
            whole = g_pair(line, averages[i], &value) && g_hundredths(value, &found[i + 1]);
        if (whole) memcpy(row + 4 * full, found, sizeof found);
    }
}

static int g_device(g_text text, int64_t *major, int64_t *minor) {
    g_text first;
    return g_next(&text, ':', &first) && g_integer(first, major) && g_integer(text, minor);
}

/* The group's row for a device, created if missing; `first` is the group's first row. */
static g_io *g_io_row(g_ios *ios, size_t first, int64_t row, int64_t major, int64_t minor) {
    for (size_t i = first; i < ios->used; i++)
        if (ios->rows[i].major == major && ios->rows[i].minor == minor) return &ios->rows[i];
    if (ios->used == ios->capacity) {
        size_t capacity = ios->capacity ? 2 * ios->capacity : 256;
        g_io *rows = realloc(ios->rows, capacity * sizeof *rows);
        if (!rows) {
            ios->failed = 1;
            return NULL;
        }
        ios->rows = rows;
        ios->capacity = capacity;
    }
    g_io *made = &ios->rows[ios->used++];
    *made = (g_io){row, major, minor, {0, 0, 0, 0}};
    return made;
}

static void g_io_v1(g_text text, int offset, g_ios *ios, size_t first, int64_t row) {
    g_text line, word, kind, count;
    int64_t major, minor, value;
    while (g_next(&text, '\n', &line)) {
        if (!g_next(&line, ' ', &word) || !g_next(&line, ' ', &kind)) continue;
        count = line;
        int write = g_is(kind, "Write");
        if (!write && !g_is(kind, "Read")) continue;
        if (!g_device(word, &major, &minor) || !g_integer(count, &value)) continue;
        g_io *moved = g_io_row(ios, first, row, major, minor);
        if (!moved) return;
        moved->moved[offset + write] = value;
    }
}

static void g_io_v2(g_text text, g_ios *ios, size_t first, int64_t row) {
    static const char *const names[] = {"rbytes", "wbytes", "rios", "wios"};
    g_text line, word, value;
    int64_t major, minor, counts[4];
    while (g_next(&text, '\n', &line)) {
        if (!g_next(&line, ' ', &word) || !g_device(word, &major, &minor)) continue;
        int whole = 1;
        for (int i = 0; i < 4 && whole; i++)
            whole = g_pair(line, names[i], &value) && g_integer(value, &counts[i]);
        if (!whole) continue;
        g_io *moved = g_io_row(ios, first, row, major, minor);
        if (!moved) return;
        memcpy(moved->moved, counts, sizeof counts);
    }
}

/* One read is enough: each of these files is one record of the kernel's seq_file, whose buffer grows until the
   record fits. Only cgroup.procs has a record per process, and comes a page at a time. */
static ssize_t g_read(int top, const char *path, char *buffer) {
    int file = openat(top, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    ssize_t got = read(file, buffer, G_MOST);
    close(file);
    return got;
}

static void g_processes(int top, const char *path, char *buffer, int64_t *row) {
    int file = openat(top, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    int64_t count = 0, value;
    int some = 0;
    for (int i = 0; i < G_MOST_READS; i++) {
        ssize_t got = read(file, buffer, G_MOST);
        if (got <= 0) break;
        g_text text = {buffer, buffer + got}, line;
        if (!some && g_next(&text, '\n', &line) && g_integer(line, &value)) row[FIRST_PROCESS] = value;
        some = 1;
        for (ssize_t at = 0; at < got; at++) count += buffer[at] == '\n';
    }
    close(file);
    if (some) row[PROCESSES] = count;
}

static const g_wanted g_v1_ticks[] = {{"user", CPU_USER, G_TICK}, {"system", CPU_SYSTEM, G_TICK}, {0}};
static const g_wanted g_v1_cpu[] = {{"nr_periods", PERIODS, 1},       {"nr_throttled", THROTTLED_PERIODS, 1},
                                    {"throttled_time", THROTTLED, 1}, {"nr_bursts", BURSTS, 1},
                                    {"burst_time", BURST, 1},         {0}};
static const g_wanted g_v1_memory[] = {{"total_inactive_file", INACTIVE_FILE, 1},
                                       {"total_active_file", ACTIVE_FILE, 1},
                                       {"total_rss", RSS, 1},
                                       {"total_cache", CACHE, 1},
                                       {"total_mapped_file", MAPPED, 1},
                                       {"total_swap", SWAP, 1},
                                       {"total_pgfault", FAULTS, 1},
                                       {"total_pgmajfault", MAJOR_FAULTS, 1},
                                       {"total_dirty", DIRTY, 1},
                                       {"total_writeback", WRITEBACK, 1},
                                       {0}};
static const g_wanted g_v1_oom[] = {{"oom_kill", OOM_KILLS, 1}, {0}};
static const g_wanted g_v2_cpu[] = {{"usage_usec", CPU, 1000},
                                    {"user_usec", CPU_USER, 1000},
                                    {"system_usec", CPU_SYSTEM, 1000},
                                    {"nr_periods", PERIODS, 1},
                                    {"nr_throttled", THROTTLED_PERIODS, 1},
                                    {"throttled_usec", THROTTLED, 1000},
                                    {"nr_bursts", BURSTS, 1},
                                    {"burst_usec", BURST, 1000},
                                    {0}};
static const g_wanted g_v2_memory[] = {{"inactive_file", INACTIVE_FILE, 1},
                                       {"active_file", ACTIVE_FILE, 1},
                                       {"anon", RSS, 1},
                                       {"file", CACHE, 1},
                                       {"file_mapped", MAPPED, 1},
                                       {"pgfault", FAULTS, 1},
                                       {"pgmajfault", MAJOR_FAULTS, 1},
                                       {"file_dirty", DIRTY, 1},
                                       {"file_writeback", WRITEBACK, 1},
                                       {0}};
static const g_wanted g_v2_events[] = {{"max", MEMORY_FAILURES, 1}, {"oom_kill", OOM_KILLS, 1}, {0}};

/* The order of the twin's V1_CONTROLLERS; v2 has a single directory, the first. */
enum { G_CPUACCT, G_CPU, G_MEMORY, G_PIDS, G_BLKIO };
static const char G_SERVICE_BYTES[] = "blkio.throttle.io_service_bytes_recursive";
/* The order matters: the pulse comes first, as it decides whether the others are read at all; quota and limit come
   before the files that are read only if they are set; the number of threads comes before cgroup.procs. */
static const g_file g_v1[] = {
    {G_PULSE, G_CPUACCT, "cpuacct.usage", 0, G_NUMBER, CPU, 0},
    {G_PULSE, G_MEMORY, "memory.usage_in_bytes", 0, G_NUMBER, MEMORY, 0},
    {G_SET, G_CPU, "cpu.shares", 0, G_NUMBER, SHARES, 0},
    {G_SET, G_CPU, "cpu.cfs_quota_us", 0, G_NUMBER, QUOTA, 0},
    {G_SET, G_CPU, "cpu.cfs_period_us", 0, G_NUMBER, PERIOD, 0},
    {G_SET, G_MEMORY, "memory.limit_in_bytes", 0, G_NUMBER, MEMORY_LIMIT, 0},
    {G_SET, G_MEMORY, "memory.memsw.limit_in_bytes", 0, G_NUMBER, SWAP_LIMIT, 0},
    {G_SET, G_PIDS, "pids.max", 0, G_NUMBER, THREADS_LIMIT, 0},
    {G_MOVES, G_CPUACCT, "cpuacct.stat", 0, G_FLAT, 0, g_v1_ticks},
    {G_IF_LIMITED, G_CPU, "cpu.stat", 0, G_FLAT, 0, g_v1_cpu, QUOTA},
    {G_MOVES, G_MEMORY, "memory.max_usage_in_bytes", 0, G_NUMBER, MEMORY_PEAK, 0},
    {G_IF_LIMITED, G_MEMORY, "memory.failcnt", 0, G_NUMBER, MEMORY_FAILURES, 0, MEMORY_LIMIT},
    {G_DRIFTS, G_MEMORY, "memory.stat", 0, G_FLAT, 0, g_v1_memory},
    {G_MOVES, G_MEMORY, "memory.oom_control", 0, G_FLAT, 0, g_v1_oom},
    {G_MOVES, G_PIDS, "pids.current", 0, G_NUMBER, THREADS, 0},
    {G_IF_OTHER_THREADS, G_MEMORY, "cgroup.procs", 0, G_PROCESSES, 0, 0},
    {G_MOVES, G_BLKIO, G_SERVICE_BYTES, "blkio.throttle.io_service_bytes", G_IO_V1, 0, 0},
    {G_MOVES, G_BLKIO, "blkio.throttle.io_serviced_recursive", "blkio.throttle.io_serviced", G_IO_V1, 2, 0},
    {0},
};
static const g_file g_v2[] = {
    {G_PULSE, 0, "cpu.stat", 0, G_FLAT, 0, g_v2_cpu},
    {G_PULSE, 0, "memory.current", 0, G_NUMBER, MEMORY, 0},
    {G_SET, 0, "cpu.max", 0, G_MAX, 0, 0},
    {G_SET, 0, "cpu.weight", 0, G_WEIGHT, SHARES, 0},
    {G_SET, 0, "memory.max", 0, G_NUMBER, MEMORY_LIMIT, 0},
    {G_SET, 0, "memory.swap.max", 0, G_NUMBER, SWAP_LIMIT, 0},
    {G_SET, 0, "pids.max", 0, G_NUMBER, THREADS_LIMIT, 0},
    {G_MOVES, 0, "memory.peak", 0, G_NUMBER, MEMORY_PEAK, 0},
    {G_MOVES, 0, "memory.swap.current", 0, G_NUMBER, SWAP, 0},
    {G_DRIFTS, 0, "memory.stat", 0, G_FLAT, 0, g_v2_memory},
    {G_MOVES, 0, "memory.events", 0, G_FLAT, 0, g_v2_events},
    {G_MOVES, 0, "pids.current", 0, G_NUMBER, THREADS, 0},
    {G_IF_OTHER_THREADS, 0, "cgroup.procs", 0, G_PROCESSES, 0, 0},
    {G_MOVES, 0, "io.stat", 0, G_IO_V2, 0, 0},
    {G_MOVES, 0, "cpu.pressure", 0, G_STALLED, G_PRESSURE, 0},
    {G_MOVES, 0, "memory.pressure", 0, G_STALLED, G_PRESSURE + 8, 0},
    {G_MOVES, 0, "io.pressure", 0, G_STALLED, G_PRESSURE + 16, 0},
    {0},
};

static void g_take(const g_file *file, g_text text, int64_t tick, int64_t *row, g_ios *ios, size_t first,
                   int64_t at) {
    g_text piece;
    switch (file->kind) {
    case G_NUMBER: g_limit(text, &row[file->column]); break;
    case G_WEIGHT:
        g_limit(text, &row[SHARES]);
        /* The inverse of KEP-2254's conversion, weight = 1 + (shares - 2) * 9999 / 262142. */
        if (row[SHARES] != G_ABSENT) {
            __int128 scaled = ((__int128)row[SHARES] - 1) * 262142;
            scaled = scaled / 9999 - (scaled % 9999 < 0) + 2;
            row[SHARES] = scaled > INT64_MAX ? INT64_MAX : scaled < -INT64_MAX ? -INT64_MAX : (int64_t)scaled;
        }
        break;
    case G_FLAT: g_flat(text, file->wanted, tick, row); break;
    case G_MAX:
        if (!g_next(&text, ' ', &piece)) break;
        if (g_is(piece, "max"))
            row[QUOTA] = -1;
        else
            g_limit(piece, &row[QUOTA]);
        g_limit(text, &row[PERIOD]);
        break;
    case G_STALLED: g_stalled(text, row + file->column); break;
    case G_IO_V1: g_io_v1(text, file->column, ios, first, at); break;
    case G_IO_V2: g_io_v2(text, ios, first, at); break;
    case G_PROCESSES: break;
    }
}

/* Opens the first `count` of the controllers' directories; the others, and those that cannot be opened, are -1. */
static void g_open(const char *const *directories, int count, int *tops) {
    for (int i = 0; i < G_CONTROLLERS; i++)
        tops[i] = i < count ? open(directories[i], O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
}

static void g_close(const int *tops) {
    for (int i = 0; i < G_CONTROLLERS; i++)
        if (tops[i] >= 0) close(tops[i]);
}

static void g_clear(int64_t *row) {
    for (int i = 0; i < G_WIDTH; i++) row[i] = G_ABSENT;
}

/* Whether no value of the row changes without running processes: averages decay and files are written back. */
static int g_settled(const int64_t *row) {
    for (int i = 0; i < 24; i++)
        if (i % 4 && row[G_PRESSURE + i] > 0) return 0;
    return row[DIRTY] <= 0 && row[WRITEBACK] <= 0;
}

static void g_clear_set(int64_t *row) {
    static const int set[] = {SHARES, QUOTA, PERIOD, MEMORY_LIMIT, SWAP_LIMIT, THREADS_LIMIT};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) row[set[i]] = G_ABSENT;
}

static int g_is_read(const g_file *file, const int64_t *row, int64_t threads, int due, int rests) {
    switch (file->when) {
    case G_PULSE: return !rests;
    case G_SET: return due;
    case G_DRIFTS: return due || !rests;
    case G_MOVES: return !rests;
    case G_IF_LIMITED: return !rests && row[file->limit] > 0;
    case G_IF_OTHER_THREADS: return !rests && row[THREADS] != threads;
    }
    return 0;
}

/* Reads one group (NULL for a row without a group) into its row, which holds the previous values. Returns 0 if the
   group is idle and only the `due` part was read. `buffer` has G_MOST bytes. */
static int g_group(const int *tops, const char *cgroup, int v1, int64_t tick, int due, int within_rest,
                   char *buffer, int64_t at, int64_t *row, g_ios *ios) {
    char path[G_PATH];
    const int64_t cpu = row[CPU], memory = row[MEMORY], threads = row[THREADS];
    if (!cgroup) {
        g_clear(row);
        return 1;
    }
    const size_t first = ios->used, length = strlen(cgroup);
    const int whole = cpu == G_ABSENT || memory == G_ABSENT;
    int looked = 0, rests = !whole && within_rest;
    if (rests && !due) return 0;
    if (whole) g_clear(row);
    if (!rests) row[CPU] = row[MEMORY] = G_ABSENT;
    /* The longest name of a file has 41 bytes. */
    if (length + 64 > sizeof path) return 1;
    memcpy(path, cgroup, length);
    if (length) path[length] = '/';
    char *name = path + length + (length > 0);
    for (const g_file *file = v1 ? g_v1 : g_v2; file->name && !ios->failed; file++) {
        if (!whole) {
            if (!looked && file->when != G_PULSE) {
                looked = 1;
                /* The group was removed: its old numbers must not look current. */
                if (row[CPU] == G_ABSENT || row[MEMORY] == G_ABSENT) {
                    g_clear(row);
                    return 1;
                }
                rests |= row[CPU] == cpu && row[MEMORY] == memory && g_settled(row);
                if (rests && !due) return 0;
                /* A limit that was removed reads `max`, which does not overwrite the old number. */
                if (due) g_clear_set(row);
            }
            if (!g_is_read(file, row, threads, due, rests)) continue;
        }
        int top = tops[file->controller];
        if (top < 0) continue;
        strcpy(name, file->name);
        if (file->kind == G_PROCESSES) {
            g_processes(top, path, buffer, row);
            continue;
        }
        ssize_t got = g_read(top, path, buffer);
        if (got <= 0 && file->otherwise) {
            strcpy(name, file->otherwise);
            got = g_read(top, path, buffer);
        }
        if (got > 0) g_take(file, (g_text){buffer, buffer + got}, tick, row, ios, first, at);
    }
    return !rests;
}
