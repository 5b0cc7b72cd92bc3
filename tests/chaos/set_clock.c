/* A wall clock that a test sets, for one process: LD_PRELOAD this and name a file of struct setting in SET_CLOCK.
 * A time namespace would not do, since it moves the monotonic clock only. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL

struct setting {
    int64_t offset_ns;
    int64_t since_ns; /* monotonic time from which the clock runs `slew` nanoseconds a second too fast */
    int64_t slew;
};

static const volatile struct setting *setting;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("SET_CLOCK");
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof *setting, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) setting = map;
}

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    syscall(SYS_clock_gettime, clock, &now);
    return now.tv_sec * BILLION + now.tv_nsec;
}

static int64_t wall_ns(void) {
    int64_t now = now_ns(CLOCK_REALTIME);
    if (!setting) return now;
    int64_t since = now_ns(CLOCK_MONOTONIC) - setting->since_ns;
    return now + setting->offset_ns + (int64_t)((double)since * (double)setting->slew / 1e9);
}

int clock_gettime(clockid_t clock, struct timespec *into) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, into);
    int64_t now = wall_ns();
    into->tv_sec = now / BILLION;
    into->tv_nsec = now % BILLION;
    return 0;
}

int gettimeofday(struct timeval *restrict into, void *restrict zone) {
    (void)zone;
    int64_t now = wall_ns();
    into->tv_sec = now / BILLION;
    into->tv_usec = now % BILLION / 1000;
    return 0;
}

time_t time(time_t *into) {
    time_t now = wall_ns() / BILLION;
    if (into) *into = now;
    return now;
}
