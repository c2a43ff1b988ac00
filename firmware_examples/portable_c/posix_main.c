/* The device on a computer. Each function of the ports is what a board has to provide as well. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "posix.h"
#include "waypost_device.h"

enum { CLOCK_ASK_S = 3600, POLL_MS = 20, WATCHDOG_S = 120 };

struct computer {
    struct connection gateway;
    const char *time_url;
    int spool;
    int64_t clock_offset_s; /* time of the gateway minus the monotonic clock */
    int64_t clock_asked_s;
    int clock_known, clock_asked;
    unsigned time_attempts;
};

static volatile sig_atomic_t stop_requested;

static void on_signal(int number) {
    (void)number;
    stop_requested = 1;
}

/* --- network ---------------------------------------------------------------------------------------------------- */

/* Ask the gateway for the time, at most once an hour: the field Date of an answer. */
static void ask_time(struct computer *computer) {
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char answer[2048] = "", host[256], port[8] = "80", month[4], *date;
    struct tm at = {0};
    int64_t now_s = monotonic_ms() / 1000;
    if (!computer->time_url[0] || (computer->clock_asked && now_s - computer->clock_asked_s < CLOCK_ASK_S)) return;
    if (sscanf(computer->time_url, "http://%255[^:/]:%7[0-9]", host, port) < 1) return;
    int made = connect_to(host, port, 0, computer->time_attempts++);
    if (made < 0) return;
    snprintf(answer, sizeof answer, "HEAD /healthz HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host);
    size_t length = strlen(answer), have = 0;
    if (send(made, answer, length, MSG_NOSIGNAL) == (ssize_t)length) {
        ssize_t got;
        while (have < sizeof answer - 1 && (got = recv(made, answer + have, sizeof answer - 1 - have, 0)) > 0)
            have += (size_t)got;
    }
    close(made);
    answer[have] = 0;
    date = strcasestr(answer, "\r\ndate:");
    if (!date || sscanf(date + 7, " %*3s, %d %3s %d %d:%d:%d", &at.tm_mday, month, &at.tm_year, &at.tm_hour,
                        &at.tm_min, &at.tm_sec) != 6 || !strstr(months, month)) {
        say_two("no time from", computer->time_url);
        return;
    }
    at.tm_mon = (int)(strstr(months, month) - months) / 3;
    at.tm_year -= 1900;
    time_t time_s = timegm(&at);
    if (time_s <= CLOCK_SET_AFTER) return; /* the gateway has no time either */
    computer->clock_offset_s = (int64_t)time_s - now_s;
    computer->clock_asked_s = now_s;
    computer->clock_known = computer->clock_asked = 1;
}

static uint32_t time_s(void *context) {
    struct computer *computer = context;
    if (computer->time_url[0])
        return computer->clock_known ? (uint32_t)(monotonic_ms() / 1000 + computer->clock_offset_s) : 0;
    time_t now = time(NULL);
    return now > CLOCK_SET_AFTER ? (uint32_t)now : 0;
}

static int network_open(void *context) {
    struct computer *computer = context;
    ask_time(computer);
    return connection_open(&computer->gateway);
}

static int network_send(void *context, const uint8_t *data, size_t length) {
    return connection_send(&((struct computer *)context)->gateway, data, length);
}

static int network_receive(void *context, uint8_t *data, size_t size) {
    return connection_receive(&((struct computer *)context)->gateway, data, size);
}

static void network_close(void *context) { connection_close(&((struct computer *)context)->gateway); }

/* --- storage and sensors ---------------------------------------------------------------------------------------- */

static int read_slot(void *context, uint32_t slot, uint8_t *data) {
    struct computer *computer = context;
    return pread(computer->spool, data, WP_SLOT_BYTES, (off_t)slot * WP_SLOT_BYTES) == WP_SLOT_BYTES ? 0 : -1;
}

static int write_slot(void *context, uint32_t slot, const uint8_t *data) {
    struct computer *computer = context;
    if (pwrite(computer->spool, data, WP_SLOT_BYTES, (off_t)slot * WP_SLOT_BYTES) != WP_SLOT_BYTES) return -1;
    return fdatasync(computer->spool);
}

/* Read your own sensors here. */
static size_t measure(void *context, char *json, size_t size) {
    double load = 0;
    (void)context;
    if (getloadavg(&load, 1) != 1) return 0;
    int length = snprintf(json, size, "\"load_1m\":%.2f", load);
    return length > 0 && (size_t)length < size ? (size_t)length : 0;
}

/* Open or create the spool; returns the number of its slots. */
static uint32_t open_spool(struct computer *computer) {
    static const uint8_t empty[WP_SLOT_BYTES];
    const char *path = setting("WAYPOST_SPOOL", "readings.spool");
    char made[4096];
    struct stat found;
    if (stat(path, &found) && errno == ENOENT) { /* its whole size now, so that a disk without space is noticed */
        uint32_t slots = number_of("WAYPOST_SPOOL_READINGS", 1024);
        snprintf(made, sizeof made, "%s.new", path);
        FILE *file = fopen(made, "wb");
        int written = file != NULL && slots > 0;
        for (uint32_t slot = 0; written && slot < slots; slot++) written = fwrite(empty, sizeof empty, 1, file) == 1;
        if (!written || fflush(file) || fsync(fileno(file)) || fclose(file) || rename(made, path))
            fail_setting(path, "the spool cannot be made; check WAYPOST_SPOOL and the disk");
    }
    computer->spool = open(path, O_RDWR | O_CLOEXEC);
    if (computer->spool < 0 || fstat(computer->spool, &found)) fail_setting(path, strerror(errno));
    if (!found.st_size || found.st_size % WP_SLOT_BYTES)
        fail_setting(path, "is not a spool; move it away, or set WAYPOST_SPOOL to another file");
    return (uint32_t)(found.st_size / WP_SLOT_BYTES);
}

/* --- the loop --------------------------------------------------------------------------------------------------- */

static int stopped(const struct wp_device *device) {
    char text[120];
    snprintf(text, sizeof text, "stopped: every reading below %u is acknowledged, %u were dropped",
             (unsigned)device->next, (unsigned)device->dropped);
    say(NULL, text);
    return 0;
}

/* Run until the device is stopped; returns the exit code. */
static int run(struct computer *computer, struct wp_device *device, struct updater *updater) {
    /* A loop that hangs is killed, and the boot loader starts the program again. */
    begin_watchdog(setting("WAYPOST_SLOT", NULL) ? number_of("WAYPOST_WATCHDOG_S", WATCHDOG_S) : 0);
    for (;;) {
        enum wp_status status = wp_step(device);
        if (status == WP_FINISHED) return stopped(device);
        if (status == WP_STORAGE_FAILED) return 1;
        if (updater && updater_step(updater, wp_delivered(device)) == WU_RESTART) return EXIT_RESTART;
        feed_watchdog();
        if (stop_requested) wp_stop(device);
        struct pollfd waiting[] = {{.fd = computer->gateway.socket, .events = POLLIN},
                                   {.fd = updater ? updater_socket(updater) : -1, .events = POLLIN}};
        poll(waiting, 2, updater && updater_is_busy(updater) ? 1 : POLL_MS);
    }
}

int main(void) {
    static struct computer computer = {.gateway = {.socket = -1}, .spool = -1};
    static struct wp_device device;
    SSL_CTX *tls = computer.gateway.tls = tls_of_settings();
    computer.gateway.host = setting("WAYPOST_HOST", "127.0.0.1");
    computer.gateway.port = setting("WAYPOST_PORT", tls ? "8883" : "1883");
    computer.time_url = setting("WAYPOST_TIME_URL", "");
    if (computer.time_url[0] && strncmp(computer.time_url, "http://", 7))
        fail_setting("WAYPOST_TIME_URL", "has to begin with http://");
    const struct wp_port port = {&computer, network_open, network_send, network_receive, network_close, read_slot,
                                 write_slot, ticks_ms, time_s, random_word, measure, say};
    const struct wp_settings settings = {setting("WAYPOST_DEVICE", "pump7"), setting("WAYPOST_PASSWORD", NULL),
                                         open_spool(&computer), number_of("WAYPOST_INTERVAL_MS", 1000)};
    if (wp_begin(&device, &settings, &port))
        fail_setting("WAYPOST_DEVICE, WAYPOST_PASSWORD or WAYPOST_INTERVAL_MS", "is out of range");
    struct updater *updater = updater_begin(tls, settings.device, settings.password, time_s, &computer);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    int code = run(&computer, &device, updater);
    updater_end(updater);
    network_close(&computer);
    close(computer.spool);
    SSL_CTX_free(tls);
    return code;
}
