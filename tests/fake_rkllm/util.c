#include "util.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const uint64_t SECOND = 1000 * MS;

static void make_room(Buffer *buffer, size_t more)
{
    size_t needed = buffer->length + more + 1;
    if (needed <= buffer->room)
        return;
    buffer->room = needed * 2;
    buffer->bytes = realloc(buffer->bytes, buffer->room);
    if (buffer->bytes == NULL)
        refuse("out of memory");
}

void buffer_add(Buffer *buffer, const char *bytes, size_t length)
{
    make_room(buffer, length);
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
    buffer->bytes[buffer->length] = '\0';
}

static void buffer_vformat(Buffer *buffer, const char *format, va_list values)
{
    va_list again;
    va_copy(again, values);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    make_room(buffer, (size_t)length);
    vsnprintf(buffer->bytes + buffer->length, (size_t)length + 1, format, values);
    buffer->length += (size_t)length;
}

void buffer_format(Buffer *buffer, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    buffer_vformat(buffer, format, values);
    va_end(values);
}

void buffer_json(Buffer *buffer, const char *text)
{
    if (text == NULL) {
        buffer_add(buffer, "null", 4);
        return;
    }
    buffer_add(buffer, "\"", 1);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            buffer_format(buffer, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            buffer_format(buffer, "\\u%04x", *text);
        else
            buffer_add(buffer, text, 1);
    }
    buffer_add(buffer, "\"", 1);
}

void *take(size_t size)
{
    void *memory = calloc(1, size);
    if (memory == NULL)
        refuse("out of memory");
    return memory;
}

char *copy_of(const char *text)
{
    if (text == NULL)
        return NULL;
    size_t size = strlen(text) + 1;
    return memcpy(take(size), text, size);
}

void spoil(void *memory, char byte, size_t size)
{
    for (volatile char *at = memory; size > 0; size--)
        *at++ = byte;
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

void sleep_until(uint64_t ns)
{
    struct timespec then = {.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL) != 0)
        ;
}

uint64_t seed(void)
{
    static uint64_t chosen;
    const char *wanted = getenv("FAKE_RKLLM_SEED");
    if (wanted != NULL)
        return strtoull(wanted, NULL, 10);
    if (chosen == 0)
        chosen = now_ns() ^ (uint64_t)getpid();
    return chosen;
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t value = (*state += 0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

Dice dice_for(uint64_t run)
{
    uint64_t state = seed();
    return (Dice){next_random(&state) ^ run};
}

unsigned roll(Dice *dice, unsigned sides)
{
    return (unsigned)(next_random(&dice->state) % sides);
}

static void log_line(const char *what)
{
    const char *path = getenv("FAKE_RKLLM_LOG");
    if (path == NULL)
        return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    Buffer line = {0};
    buffer_format(&line, "%llu %d %ld %s\n", (unsigned long long)now_ns(), getpid(),
                  syscall(SYS_gettid), what);
    /* A single write, so that lines of several threads and processes do not mix. */
    if (write(file, line.bytes, line.length) < 0)
        perror("FAKE_RKLLM_LOG");
    free(line.bytes);
    close(file);
}

void log_call(const char *format, ...)
{
    Buffer line = {0};
    va_list values;
    va_start(values, format);
    buffer_vformat(&line, format, values);
    va_end(values);
    log_line(line.bytes);
    free(line.bytes);
}

_Noreturn void refuse(const char *format, ...)
{
    char message[1000];
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    dprintf(STDERR_FILENO, "fake_rkllm: %s\n", message);
    log_call("refused %s", message);
    abort();
}

_Noreturn void crash(const char *last_words)
{
    if (last_words != NULL)
        dprintf(STDERR_FILENO, "%s\n", last_words);
    log_call("crash");
    volatile int *volatile nowhere = NULL;
    *nowhere = 1;
    abort();
}
