/* Counts the open descriptors of the processes of a cgroup. descriptors.py states the rules. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* PID_MAX_LIMIT is 4 Mi on 64-bit machines (proc(5), kernel.pid_max). */
enum { D_MOST = 1 << 16, D_MOST_DESCRIPTORS = 1 << 16, D_LARGEST_PID = 1 << 22, D_PATH = 4096 };
#define D_ABSENT INT64_MIN

static int64_t d_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The first D_MOST bytes of a file, which the kernel gives out a page at a time; -1 if it cannot be opened. */
static ssize_t d_read(int top, const char *path, char *buffer) {
    int file = openat(top, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    ssize_t used = 0;
    while (used < D_MOST) {
        ssize_t got = read(file, buffer + used, (size_t)(D_MOST - used));
        if (got <= 0) break;
        used += got;
    }
    close(file);
    return used;
}

/* Digits, fewer than `most` of them; -1 for everything else. */
static int64_t d_digits(const char *at, const char *end, int most) {
    int64_t sum = 0;
    if (at >= end || end - at >= most) return -1;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9') return -1;
        sum = 10 * sum + (*at - '0');
    }
    return sum;
}

static int64_t d_open_files_limit(const char *text, ssize_t length) {
    static const char name[] = "Max open files";
    const size_t named = sizeof name - 1;
    for (const char *at = text, *end = text + length; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        if ((size_t)(stop - at) >= named && memcmp(at, name, named) == 0) {
            at += named;
            while (at < stop && *at == ' ') at++;
            const char *word = memchr(at, ' ', (size_t)(stop - at));
            if (!word) word = stop;
            if (word - at == 9 && memcmp(at, "unlimited", 9) == 0) return -1;
            int64_t value = d_digits(at, word, 19);
            return value < 0 ? D_ABSENT : value;
        }
        at = stop + 1;
    }
    return D_ABSENT;
}

/* Adds the descriptors of one process to the counts. */
static void d_process(int proc, int64_t pid, int64_t *counts) {
    char path[32], to[8];
    snprintf(path, sizeof path, "%lld/fd", (long long)pid);
    int at = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at < 0) return;
    DIR *directory = fdopendir(at);
    if (!directory) {
        close(at);
        return;
    }
    for (struct dirent *each; counts[0] < D_MOST_DESCRIPTORS && (each = readdir(directory));) {
        if (strcmp(each->d_name, ".") == 0 || strcmp(each->d_name, "..") == 0) continue;
        counts[0]++;
        /* Only the beginning of `socket:[INODE]` fits, and that is enough. A link that may not be read counts as a
           descriptor all the same. */
        ssize_t length = readlinkat(at, each->d_name, to, sizeof to);
        counts[1] += length >= 7 && memcmp(to, "socket:", 7) == 0;
    }
    closedir(directory);
}

/* Counts one group, NULL for a row without one. `listed` and `limits` have D_MOST bytes each. */
static void d_group(int proc, int top, const char *cgroup, char *listed, char *limits, int64_t *counts) {
    char path[D_PATH];
    ssize_t length = -1;
    counts[0] = counts[1] = counts[2] = D_ABSENT;
    if (!cgroup) return;
    int n = snprintf(path, sizeof path, "%s%scgroup.procs", cgroup, *cgroup ? "/" : "");
    if (n > 0 && (size_t)n < sizeof path) length = d_read(top, path, listed);
    if (length < 0) return;
    counts[0] = counts[1] = 0;
    int first = 1;
    for (const char *at = listed, *end = listed + length; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) break; /* cut off at D_MOST: the digits so far are another process's number */
        int64_t pid = d_digits(at, stop, 10);
        at = stop + 1;
        if (pid <= 0 || pid > D_LARGEST_PID) continue;
        if (first) {
            first = 0;
            snprintf(path, sizeof path, "%lld/limits", (long long)pid);
            counts[2] = d_open_files_limit(limits, d_read(proc, path, limits));
        }
        d_process(proc, pid, counts);
    }
}
