/*
 * A client that cannot be the bottleneck: `PORT STREAMS SERVER_PID`, a whole HTTP request on stdin.
 *
 * It sends the request on so many connections, reads until the server has closed them all, and only
 * keeps what came and when. Nothing is told or taken apart before the last byte is there. Then, for
 * each connection, a struct told, its struct reads and its bytes go to stdout. Times are nanoseconds
 * of CLOCK_MONOTONIC, cpu_* what the server's process had used: when it was last looked at before
 * anything had come, at a connection's first read, and at its end.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 300
#define READ_BYTES 65536
#define EVENTS 256
#define LOOK_MS 5

struct told {
    int64_t asked, cpu_before, cpu_first, cpu_end, reads, bytes;
};

struct read {
    int64_t ns, end;
};

struct stream {
    int fd;
    struct told told;
    struct read *reads;
    char *bytes;
    size_t reads_room, bytes_room;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t now(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t))
        fail("clock_gettime");
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *grown(void *old, size_t *room, size_t unit)
{
    *room *= 2;
    void *found = realloc(old, *room * unit);
    if (!found)
        fail("realloc");
    return found;
}

static char *request(size_t *length)
{
    size_t room = READ_BYTES, got;
    char *text = malloc(room);
    if (!text)
        fail("malloc");
    *length = 0;
    while ((got = fread(text + *length, 1, room - *length, stdin)) > 0) {
        *length += got;
        if (*length == room)
            text = grown(text, &room, 1);
    }
    return text;
}

static void connect_to(struct stream *stream, int port, int poll)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
    int on = 1;
    stream->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (stream->fd < 0 || connect(stream->fd, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (epoll_ctl(poll, EPOLL_CTL_ADD, stream->fd, &event))
        fail("epoll_ctl");
    stream->reads_room = 1024;
    stream->bytes_room = 4 * READ_BYTES;
    stream->reads = malloc(stream->reads_room * sizeof *stream->reads);
    stream->bytes = malloc(stream->bytes_room);
    if (!stream->reads || !stream->bytes)
        fail("malloc");
}

/* Read once; whether there may be more. */
static int take(struct stream *stream, clockid_t server)
{
    struct told *told = &stream->told;
    if (stream->bytes_room - told->bytes < READ_BYTES)
        stream->bytes = grown(stream->bytes, &stream->bytes_room, 1);
    ssize_t got = recv(stream->fd, stream->bytes + told->bytes, READ_BYTES, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 1;
    if (got < 0)
        fail("recv");
    if (!got) {
        told->cpu_end = now(server);
        close(stream->fd);
        return 0;
    }
    if (told->reads == (int64_t)stream->reads_room)
        stream->reads = grown(stream->reads, &stream->reads_room, sizeof *stream->reads);
    if (!told->reads)
        told->cpu_first = now(server);
    told->bytes += got;
    stream->reads[told->reads++] = (struct read){now(CLOCK_MONOTONIC), told->bytes};
    return 1;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    int port = atoi(arguments[1]), streams = atoi(arguments[2]), left = streams;
    clockid_t server;
    if ((errno = clock_getcpuclockid(atoi(arguments[3]), &server)))
        fail("clock_getcpuclockid");
    alarm(LIMIT_S);
    size_t length;
    char *asked = request(&length);
    int poll = epoll_create1(0);
    struct stream *all = calloc(streams, sizeof *all);
    if (poll < 0 || !all)
        fail("epoll_create1");
    for (int n = 0; n < streams; n++)
        connect_to(&all[n], port, poll);
    for (int n = 0; n < streams; n++) {
        all[n].told.asked = now(CLOCK_MONOTONIC);
        if (send(all[n].fd, asked, length, 0) != (ssize_t)length)
            fail("send");
    }
    int64_t cpu_before = now(server);
    int silent = 1;
    while (left) {
        struct epoll_event events[EVENTS];
        int found = epoll_wait(poll, events, EVENTS, silent ? LOOK_MS : -1);
        if (found > 0)
            silent = 0;
        else if (silent)
            cpu_before = now(server);
        for (int n = 0; n < found; n++)
            left -= !take(events[n].data.ptr, server);
    }
    for (int n = 0; n < streams; n++) {
        all[n].told.cpu_before = cpu_before;
        fwrite(&all[n].told, sizeof all[n].told, 1, stdout);
        fwrite(all[n].reads, sizeof *all[n].reads, all[n].told.reads, stdout);
        fwrite(all[n].bytes, 1, all[n].told.bytes, stdout);
    }
    return fflush(stdout) ? 1 : 0;
}
