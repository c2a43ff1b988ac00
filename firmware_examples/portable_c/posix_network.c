/* Connections to the gateway with sockets and OpenSSL, and what the other files of this port share. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "posix.h"

void say(void *context, const char *text) {
    char at[16];
    time_t now = time(NULL);
    struct tm local;
    (void)context;
    strftime(at, sizeof at, "%H:%M:%S", localtime_r(&now, &local));
    fprintf(stderr, "%s %s\n", at, text);
}

void say_two(const char *one, const char *two) {
    char text[300];
    snprintf(text, sizeof text, "%s: %s", one, two);
    say(NULL, text);
}

int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

uint32_t ticks_ms(void *context) {
    (void)context;
    return (uint32_t)monotonic_ms();
}

uint32_t random_word(void *context) {
    uint32_t word = 0;
    (void)context;
    if (getrandom(&word, sizeof word, 0) != sizeof word) say(NULL, "no random numbers");
    return word;
}

static unsigned watchdog_s;

void begin_watchdog(unsigned seconds) {
    watchdog_s = seconds;
    feed_watchdog();
}

void feed_watchdog(void) {
    if (watchdog_s) alarm(watchdog_s);
}

/* --- settings --------------------------------------------------------------------------------------------------- */

const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && value[0] ? value : otherwise;
}

uint32_t number_of(const char *name, uint32_t otherwise) {
    const char *value = setting(name, NULL);
    char *end;
    if (!value) return otherwise;
    unsigned long number = strtoul(value, &end, 10);
    if (*end || number > UINT32_MAX) fail_setting(name, "is not a number");
    return (uint32_t)number;
}

void fail_setting(const char *name, const char *why) {
    say_two(name, why);
    exit(2);
}

SSL_CTX *tls_of_settings(void) {
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

/* --- connections ------------------------------------------------------------------------------------------------ */

int connect_to(const char *host, const char *port, int flags, unsigned attempt) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    feed_watchdog(); /* name servers that do not answer take their time */
    int error = getaddrinfo(host, port, &hints, &found);
    feed_watchdog();
    if (error) {
        say_two(host, gai_strerror(error));
        return -1;
    }
    unsigned count = 0;
    for (struct addrinfo *each = found; each; each = each->ai_next) count++;
    struct addrinfo *chosen = found;
    for (unsigned skip = attempt % count; skip; skip--) chosen = chosen->ai_next;
    int made = socket(chosen->ai_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    struct timeval limit = {.tv_sec = CONNECT_TIMEOUT_S};
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

int connection_open(void *context) {
    struct connection *connection = context;
    connection->socket = connect_to(connection->host, connection->port, SOCK_NONBLOCK, connection->attempts++);
    if (connection->socket < 0) return -1;
    if (!connection->tls) return 0;
    connection->session = SSL_new(connection->tls);
    if (!connection->session || !SSL_set_fd(connection->session, connection->socket)) return -1;
    X509_VERIFY_PARAM *verified = SSL_get0_param(connection->session);
    if (!X509_VERIFY_PARAM_set1_ip_asc(verified, connection->host)) {
        if (!X509_VERIFY_PARAM_set1_host(verified, connection->host, 0)) return -1;
        SSL_set_tlsext_host_name(connection->session, connection->host);
    }
    SSL_set_connect_state(connection->session);
    return 0;
}

/* Return 0 for "not now", -1 for a broken connection. */
static int after_tls(struct connection *connection, int result) {
    int error = SSL_get_error(connection->session, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return 0;
    long refused = SSL_get_verify_result(connection->session);
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

int connection_send(void *context, const uint8_t *data, size_t length) {
    struct connection *connection = context;
    if (!connection->session) return after_socket(send(connection->socket, data, length, MSG_NOSIGNAL));
    ERR_clear_error(); /* one queue for all connections: what another one left there would count here */
    int sent = SSL_write(connection->session, data, (int)length);
    return sent > 0 ? sent : after_tls(connection, sent);
}

int connection_receive(void *context, uint8_t *data, size_t size) {
    struct connection *connection = context;
    if (!connection->session) return after_socket(recv(connection->socket, data, size, 0));
    ERR_clear_error();
    int got = SSL_read(connection->session, data, (int)size);
    return got > 0 ? got : after_tls(connection, got);
}

void connection_close(void *context) {
    struct connection *connection = context;
    if (connection->session) {
        if (SSL_is_init_finished(connection->session)) SSL_shutdown(connection->session);
        SSL_free(connection->session);
        ERR_clear_error();
    }
    if (connection->socket >= 0) close(connection->socket);
    connection->session = NULL;
    connection->socket = -1;
}
