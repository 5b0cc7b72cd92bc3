/* Preloaded into User-Mode Linux: the machine's clock runs SLOW times slower than the host's (by default 3),
 * so that a busy host breaks no deadline, and jumps to the next timer when the machine is idle and waits for
 * no disk. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DESCRIPTORS = 64, POINTER = 8 };

typedef int64_t nanoseconds;

static int (*host_clock)(clockid_t, struct timespec *);
static int (*host_create)(clockid_t, struct sigevent *, timer_t *);
static int (*host_set)(timer_t, int, const struct itimerspec *, struct itimerspec *);
static int (*host_suspend)(const sigset_t *);
static ssize_t (*host_write)(int, const void *, size_t);
static ssize_t (*host_read)(int, void *, size_t);

static nanoseconds start, skipped, slow = 3;
static timer_t timer;
static int has_timer;
static volatile int unanswered[DESCRIPTORS];
static enum { UNSEEN, SOCKET, OTHER } kinds[DESCRIPTORS];

static nanoseconds from(const struct timespec *time) {
    return time->tv_sec * INT64_C(1000000000) + time->tv_nsec;
}

static struct timespec to(nanoseconds time) {
    struct timespec value = {time / INT64_C(1000000000), time % INT64_C(1000000000)};
    return value;
}

__attribute__((constructor)) static void find_host_calls(void) {
    host_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    host_create = (int (*)(clockid_t, struct sigevent *, timer_t *))dlsym(RTLD_NEXT, "timer_create");
    host_set = (int (*)(timer_t, int, const struct itimerspec *, struct itimerspec *))dlsym(RTLD_NEXT,
                                                                                            "timer_settime");
    host_suspend = (int (*)(const sigset_t *))dlsym(RTLD_NEXT, "sigsuspend");
    host_write = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    host_read = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    struct timespec now;
    host_clock(CLOCK_MONOTONIC, &now);
    start = from(&now);
    const char *asked = getenv("SLOW");
    if (asked && atoi(asked) > 0) slow = atoi(asked);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = host_clock(clock, time);
    if (clock == CLOCK_MONOTONIC && result == 0) *time = to(start + (from(time) - start) / slow + skipped);
    return result;
}

int timer_create(clockid_t clock, struct sigevent *event, timer_t *created) {
    int result = host_create(clock, event, created);
    if (result == 0) {
        timer = *created;
        has_timer = 1;
    }
    return result;
}

int timer_settime(timer_t set, int flags, const struct itimerspec *value, struct itimerspec *old) {
    struct itimerspec slower = {to(from(&value->it_interval) * slow), to(from(&value->it_value) * slow)};
    return host_set(set, flags, &slower, old);
}

/* The kernel passes each disk request to a thread as a pointer through a socket; the pointer comes back when
 * the request is done. */
static int carries_requests(int descriptor) {
    if (descriptor < 0 || descriptor >= DESCRIPTORS) return 0;
    if (kinds[descriptor] == UNSEEN) {
        struct stat found;
        kinds[descriptor] = fstat(descriptor, &found) == 0 && S_ISSOCK(found.st_mode) ? SOCKET : OTHER;
    }
    return kinds[descriptor] == SOCKET;
}

ssize_t write(int descriptor, const void *data, size_t length) {
    int counted = length % POINTER == 0 && carries_requests(descriptor);
    if (counted) __atomic_add_fetch(&unanswered[descriptor], (int)length, __ATOMIC_SEQ_CST);
    ssize_t written = host_write(descriptor, data, length);
    if (counted && written != (ssize_t)length)
        __atomic_sub_fetch(&unanswered[descriptor], (int)(length - (written > 0 ? (size_t)written : 0)),
                           __ATOMIC_SEQ_CST);
    return written;
}

ssize_t read(int descriptor, void *data, size_t length) {
    ssize_t count = host_read(descriptor, data, length);
    if (count > 0 && count % POINTER == 0 && carries_requests(descriptor))
        __atomic_sub_fetch(&unanswered[descriptor], (int)count, __ATOMIC_SEQ_CST);
    return count;
}

static int waits_for_disk(void) {
    for (int descriptor = 0; descriptor < DESCRIPTORS; descriptor++)
        if (unanswered[descriptor] > 0) return 1;
    return 0;
}

/* The kernel's idle loop: with its signals blocked, it waits here for the next one. */
int sigsuspend(const sigset_t *mask) {
    struct itimerspec next;
    if (has_timer && timer_gettime(timer, &next) == 0 && from(&next.it_value) > 0 && !waits_for_disk()) {
        skipped += from(&next.it_value) / slow;
        next.it_value = to(1000);
        host_set(timer, 0, &next, NULL);
    }
    return host_suspend(mask);
}
