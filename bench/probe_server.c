/* A server that answers probes as cheaply as it can: HTTP 200 on the first port, gRPC health SERVING on the
 * second, accept and close on the third.  usage: probe_server PORT THREADS (listens on PORT, +1, +2). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static const char HTTP[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
static const char GRPC[] = "\0\0\0\4\0\0\0\0\0"                 /* SETTINGS */
                           "\0\0\0\4\1\0\0\0\0"                 /* SETTINGS ack */
                           "\0\0\1\1\4\0\0\0\1\x88"             /* :status 200 */
                           "\0\0\7\0\0\0\0\0\1\0\0\0\0\2\x08\1" /* SERVING */
                           "\0\0\x0f\1\5\0\0\0\1\x40\x0bgrpc-status\1"
                           "0"; /* trailers */

static int base_port;

static int listen_on(int port) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&any, sizeof any) < 0 || listen(fd, 4096) < 0) {
        perror("listen");
        exit(1);
    }
    return fd;
}

static void *serve(void *unused) {
    struct epoll_event events[256];
    char buffer[4096];
    int listeners[3], i, n, epoll = epoll_create1(0);
    (void)unused;
    for (i = 0; i < 3; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.u64 = (uint64_t)i << 32};
        listeners[i] = listen_on(base_port + i);
        epoll_ctl(epoll, EPOLL_CTL_ADD, listeners[i], &e);
    }
    for (;;) {
        n = epoll_wait(epoll, events, 256, -1);
        for (i = 0; i < n; i++) {
            int kind = (int)(events[i].data.u64 >> 32), fd = (int)(uint32_t)events[i].data.u64;
            if (fd == 0) {
                for (fd = accept4(listeners[kind], 0, 0, SOCK_NONBLOCK); fd >= 0;
                     fd = accept4(listeners[kind], 0, 0, SOCK_NONBLOCK)) {
                    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP,
                                            .data.u64 = (uint64_t)kind << 32 | (uint32_t)fd};
                    if (kind == 2)
                        close(fd);
                    else
                        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
                }
                continue;
            }
            if (recv(fd, buffer, sizeof buffer, 0) <= 0) {
                close(fd);
                continue;
            }
            if (kind == 0)
                send(fd, HTTP, sizeof HTTP - 1, MSG_NOSIGNAL);
            else
                send(fd, GRPC, sizeof GRPC - 1, MSG_NOSIGNAL);
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    int i, threads = argc > 2 ? atoi(argv[2]) : 1;
    pthread_t thread;
    base_port = atoi(argc > 1 ? argv[1] : "18080");
    for (i = 1; i < threads; i++) pthread_create(&thread, 0, serve, 0);
    puts("ready");
    fflush(stdout);
    serve(0);
    return 0;
}
