/* The system calls of a probe and nothing else: no timers, no states, no parsing, no counters.  Every 4 ms
 * a batch starts and is awaited, as the probe loop does at that rate.
 * usage: probe_bare KIND PORT RATE SECONDS   (KIND 0 tcp, 1 http, 2 grpc); prints CPU nanoseconds a probe. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char request[4096], buffer[65536];
static size_t request_len;

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv) {
    int kind = atoi(argv[1]), port = atoi(argv[2]), rate = atoi(argv[3]), batch = rate / 250, n = 0, i;
    int64_t end = clock_ns(CLOCK_MONOTONIC) + atoll(argv[4]) * 1000000000LL, next, cpu;
    int epoll = epoll_create1(0), fd;
    struct epoll_event events[256], e = {.events = EPOLLIN};
    (void)argc;
    request_len = fread(request, 1, sizeof request, stdin);
    cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    next = clock_ns(CLOCK_MONOTONIC);
    while (next < end) {
        int waiting = 0;
        struct timespec until;
        for (i = 0; i < batch; i++, n++) {
            struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
            to.sin_addr.s_addr = htonl(0x7f000001u + (uint32_t)(n % 64));
            fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
            if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)
                return perror("connect"), 1;
            if (kind == 0) {
                if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EISCONN)
                    return perror("connect"), 1;
                close(fd);
                continue;
            }
            if (send(fd, request, request_len, MSG_NOSIGNAL) < 0) return perror("send"), 1;
            e.data.fd = fd;
            epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
            waiting++;
        }
        while (waiting > 0) {
            int got = epoll_wait(epoll, events, 256, -1);
            for (i = 0; i < got; i++) {
                if (recv(events[i].data.fd, buffer, sizeof buffer, 0) <= 0) return perror("recv"), 1;
                close(events[i].data.fd);
                waiting--;
            }
        }
        next += 4000000;
        until.tv_sec = next / 1000000000LL;
        until.tv_nsec = next % 1000000000LL;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
    }
    printf("%.0f\n", (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu) / n);
    return 0;
}
