/* The device on a computer: sockets, OpenSSL and a file. Each function is what a board has to provide as well. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "waypost_device.h"

enum { CLOCK_ASK_S = 3600, CLOCK_SET_AFTER = 1700000000, CLOCK_TIMEOUT_S = 2, POLL_MS = 20 };

struct computer {
    const char *host, *port, *time_url;
    int socket, spool;
    SSL_CTX *tls;
    SSL *session;
    int64_t clock_offset_s; /* time of the gateway minus the monotonic clock */
    int64_t clock_asked_s;
    int clock_known, clock_asked;
};

static volatile sig_atomic_t stop_requested;

static void on_signal(int number) {
    (void)number;
    stop_requested = 1;
}

static void say(void *context, const char *text) {
    char at[16];
    time_t now = time(NULL);
    struct tm local;
    (void)context;
    strftime(at, sizeof at, "%H:%M:%S", localtime_r(&now, &local));
    fprintf(stderr, "%s %s\n", at, text);
}

static void say_two(const char *one, const char *two) {
    char text[300];
    snprintf(text, sizeof text, "%s: %s", one, two);
    say(NULL, text);
}

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static uint32_t ticks_ms(void *context) {
    (void)context;
    return (uint32_t)monotonic_ms();
}

static uint32_t random_word(void *context) {
    uint32_t word = 0;
    (void)context;
    if (getrandom(&word, sizeof word, 0) != sizeof word) say(NULL, "no random numbers");
    return word;
}

/* --- network ---------------------------------------------------------------------------------------------------- */

static int connect_to(const char *host, const char *port, int flags) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, port, &hints, &found);
    if (error) {
        say_two(host, gai_strerror(error));
        return -1;
    }
    /* A name may have several addresses: each attempt takes the next one. */
    static unsigned attempts;
    unsigned count = 0;
    for (struct addrinfo *each = found; each; each = each->ai_next) count++;
    struct addrinfo *chosen = found;
    for (unsigned skip = attempts++ % count; skip; skip--) chosen = chosen->ai_next;
    int made = socket(chosen->ai_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    struct timeval limit = {.tv_sec = CLOCK_TIMEOUT_S};
    if (made >= 0) {
        setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(made, chosen->ai_addr, chosen->ai_addrlen) && errno != EINPROGRESS) {
            say_two("no connection", strerror(errno));
            close(made);
            made = -1;
        }
    }
    freeaddrinfo(found);
    return made;
}

/* Ask the gateway for the time, at most once an hour: the field Date of an answer. */
static void ask_time(struct computer *computer) {
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char answer[2048] = "", host[256], port[8] = "80", month[4], *date;
    struct tm at = {0};
    int64_t now_s = monotonic_ms() / 1000;
    if (!computer->time_url[0] || (computer->clock_asked && now_s - computer->clock_asked_s < CLOCK_ASK_S)) return;
    if (sscanf(computer->time_url, "http://%255[^:/]:%7[0-9]", host, port) < 1) return;
    int made = connect_to(host, port, 0);
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
    computer->socket = connect_to(computer->host, computer->port, SOCK_NONBLOCK);
    if (computer->socket < 0) return -1;
    if (!computer->tls) return 0;
    computer->session = SSL_new(computer->tls);
    if (!computer->session || !SSL_set_fd(computer->session, computer->socket)) return -1;
    X509_VERIFY_PARAM *verified = SSL_get0_param(computer->session);
    if (!X509_VERIFY_PARAM_set1_ip_asc(verified, computer->host)) {
        if (!X509_VERIFY_PARAM_set1_host(verified, computer->host, 0)) return -1;
        SSL_set_tlsext_host_name(computer->session, computer->host);
    }
    SSL_set_connect_state(computer->session);
    return 0;
}

/* Return 0 for "not now", -1 for a broken connection. */
static int after_tls(struct computer *computer, int result) {
    int error = SSL_get_error(computer->session, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return 0;
    long refused = SSL_get_verify_result(computer->session);
    unsigned long reason = ERR_peek_last_error();
    if (refused != X509_V_OK)
        say_two("the gateway's certificate is refused", X509_verify_cert_error_string(refused));
    else if (reason)
        say_two("TLS", ERR_reason_error_string(reason) ? ERR_reason_error_string(reason) : "failed");
    ERR_clear_error();
    return -1;
}

static int after_socket(ssize_t result) {
    if (result > 0) return (int)result;
    if (result < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)) return 0;
    if (result < 0) say_two("connection", strerror(errno));
    return -1;
}

static int network_send(void *context, const uint8_t *data, size_t length) {
    struct computer *computer = context;
    if (!computer->session) return after_socket(send(computer->socket, data, length, MSG_NOSIGNAL));
    int sent = SSL_write(computer->session, data, (int)length);
    return sent > 0 ? sent : after_tls(computer, sent);
}

static int network_receive(void *context, uint8_t *data, size_t size) {
    struct computer *computer = context;
    if (!computer->session) return after_socket(recv(computer->socket, data, size, 0));
    int got = SSL_read(computer->session, data, (int)size);
    return got > 0 ? got : after_tls(computer, got);
}

static void network_close(void *context) {
    struct computer *computer = context;
    if (computer->session) {
        SSL_shutdown(computer->session);
        SSL_free(computer->session);
    }
    if (computer->socket >= 0) close(computer->socket);
    computer->session = NULL;
    computer->socket = -1;
}

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

/* --- settings --------------------------------------------------------------------------------------------------- */

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && value[0] ? value : otherwise;
}

static uint32_t number_of(const char *name, uint32_t otherwise) {
    const char *value = setting(name, NULL);
    char *end;
    if (!value) return otherwise;
    unsigned long number = strtoul(value, &end, 10);
    if (*end || number > UINT32_MAX) {
        say_two(name, "is not a number");
        exit(2);
    }
    return (uint32_t)number;
}

static void fail_setting(const char *name, const char *why) {
    say_two(name, why);
    exit(2);
}

static SSL_CTX *tls_of_settings(void) {
    const char *ca = setting("WAYPOST_CA", NULL), *certificate = setting("WAYPOST_CERTIFICATE", NULL);
    if (!ca && certificate) fail_setting("WAYPOST_CERTIFICATE", "needs TLS: set WAYPOST_CA too");
    if (!ca) return NULL;
    SSL_CTX *tls = SSL_CTX_new(TLS_client_method());
    if (!tls || !SSL_CTX_load_verify_locations(tls, ca, NULL)) fail_setting(ca, "cannot be read as a certificate");
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (certificate && (SSL_CTX_use_certificate_chain_file(tls, certificate) != 1
                        || SSL_CTX_use_PrivateKey_file(tls, setting("WAYPOST_KEY", certificate), SSL_FILETYPE_PEM) != 1))
        fail_setting(certificate, "and WAYPOST_KEY cannot be read as certificate and key");
    return tls;
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

int main(void) {
    static struct computer computer = {.socket = -1, .spool = -1};
    static struct wp_device device;
    computer.tls = tls_of_settings();
    computer.host = setting("WAYPOST_HOST", "127.0.0.1");
    computer.port = setting("WAYPOST_PORT", computer.tls ? "8883" : "1883");
    computer.time_url = setting("WAYPOST_TIME_URL", "");
    if (computer.time_url[0] && strncmp(computer.time_url, "http://", 7))
        fail_setting("WAYPOST_TIME_URL", "has to begin with http://");
    const struct wp_port port = {&computer, network_open, network_send, network_receive, network_close, read_slot,
                                 write_slot, ticks_ms, time_s, random_word, measure, say};
    const struct wp_settings settings = {setting("WAYPOST_DEVICE", "pump7"), setting("WAYPOST_PASSWORD", NULL),
                                         open_spool(&computer), number_of("WAYPOST_INTERVAL_MS", 1000)};
    if (wp_begin(&device, &settings, &port))
        fail_setting("WAYPOST_DEVICE, WAYPOST_PASSWORD or WAYPOST_INTERVAL_MS", "is out of range");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    enum wp_status status;
    while ((status = wp_step(&device)) == WP_RUNS) {
        if (stop_requested) wp_stop(&device);
        struct pollfd waiting = {.fd = computer.socket, .events = POLLIN};
        poll(&waiting, 1, POLL_MS);
    }
    network_close(&computer);
    close(computer.spool);
    SSL_CTX_free(computer.tls);
    if (status == WP_STORAGE_FAILED) return 1;
    char text[120];
    snprintf(text, sizeof text, "stopped: every reading below %u is acknowledged, %u were dropped",
             (unsigned)device.next, (unsigned)device.dropped);
    say(NULL, text);
    return 0;
}
