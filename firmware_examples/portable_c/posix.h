/* Parts of the port to a computer: connections, settings and messages, and the update with two files as slots. */
#ifndef WAYPOST_POSIX_H
#define WAYPOST_POSIX_H

#include <openssl/ssl.h>
#include <stdint.h>

#include "waypost_update.h"

enum { EXIT_RESTART = 75, CLOCK_SET_AFTER = 1700000000, CONNECT_TIMEOUT_S = 2 };

/* A connection to a listener of the gateway, with TLS if `tls` is set. Zero it, and set `socket` to -1. */
struct connection {
    const char *host, *port;
    SSL_CTX *tls;
    SSL *session;
    int socket;
    unsigned attempts; /* a name may have several addresses: each attempt takes the next one */
};

int connect_to(const char *host, const char *port, int flags, unsigned attempt);
int connection_open(void *connection);
int connection_send(void *connection, const uint8_t *data, size_t length);
int connection_receive(void *connection, uint8_t *data, size_t size);
void connection_close(void *connection);

void say(void *context, const char *text);
void say_two(const char *one, const char *two);
const char *setting(const char *name, const char *otherwise);
uint32_t number_of(const char *name, uint32_t otherwise);
void fail_setting(const char *name, const char *why);
SSL_CTX *tls_of_settings(void);
int64_t monotonic_ms(void);

/* Start the watchdog (SIGALRM); 0: none. A loop that does not feed it ends. */
void begin_watchdog(unsigned seconds);
void feed_watchdog(void);
uint32_t ticks_ms(void *context);
uint32_t random_word(void *context);

/* The record of the boot loader (posix_boot.c): the slot that is kept, the one on trial or -1, and its starts. */
struct boot_record {
    int kept, trial, starts;
};

int boot_read(const char *folder, struct boot_record *record);       /* 0, or -1 if it cannot be used */
int boot_write(const char *folder, const struct boot_record *record); /* 0 once it is on disk, or -1 */

/* Update by itself; NULL if the settings or this build have none. `time_s`: as in `struct wp_port`. */
struct updater;
struct updater *updater_begin(SSL_CTX *tls, const char *device, const char *password, uint32_t (*time_s)(void *),
                              void *context);
enum wu_status updater_step(struct updater *updater, int delivered);
int updater_is_busy(const struct updater *updater);
int updater_socket(const struct updater *updater);
void updater_end(struct updater *updater);

#endif
