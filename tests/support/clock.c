/* Wall clock of one process that tests set without root: preloaded, it shifts the time that the process reads.
 *
 * WAYPOST_CLOCK   mapped file of struct control: the offset of the clock, and its state in the kernel
 *
 * CLOCK_MONOTONIC and the timestamps of files do not change. clock.py is the other side. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t ahead_s;    /* added to the time of day */
    int32_t state;      /* result of adjtimex: TIME_OK (0) synchronized, TIME_ERROR (5) not */
};

static struct control none = {0, TIME_ERROR}, *control = &none;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_gettimeofday)(struct timeval *restrict, void *restrict);

__attribute__((constructor)) static void start(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
    const char *path = getenv("WAYPOST_CLOCK");
    int descriptor = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped != MAP_FAILED) control = mapped;
    close(descriptor);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (real_clock_gettime == NULL) start(); /* the constructor of another library ran first */
    int result = real_clock_gettime(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += control->ahead_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    if (real_gettimeofday == NULL) start();
    int result = real_gettimeofday(now, zone);
    if (result == 0) now->tv_sec += control->ahead_s;
    return result;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now != NULL) *now = precise.tv_sec;
    return precise.tv_sec;
}

int adjtimex(struct timex *unused) {
    (void)unused;
    return control->state;
}
