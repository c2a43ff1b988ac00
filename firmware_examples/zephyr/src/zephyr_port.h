/* The device on a board with Zephyr: sockets with TLS, NVS, MCUboot. */
#ifndef WAYPOST_ZEPHYR_PORT_H
#define WAYPOST_ZEPHYR_PORT_H

#include <stddef.h>
#include <stdint.h>

/* Texts have to last as long as the program. */
struct zephyr_settings {
    const char *host;
    uint16_t port, http_port;      /* of MQTT and HTTP, with TLS if `ca` is set; http_port 0: no time and no updates */
    const char *device, *password; /* password NULL: the certificate logs in */
    const char *ca, *certificate, *key; /* PEM, or NULL */
    uint32_t slots, interval_ms;   /* readings that are kept: 7 of them take 4 KiB of the partition `storage` */
    uint32_t ask_s, trial_s;       /* of the update */
    size_t (*measure)(void *context, char *json, size_t size); /* as in waypost_device.h */
    void (*log)(void *context, const char *text);
};

/* Begin, once the network stack runs. Returns 0, or -1 after it has logged why. */
int zephyr_begin(const struct zephyr_settings *settings);

/* Do what is due; it never waits, and may restart the board. Returns 0, 1 once the device was stopped and everything is
 * delivered, or -1 if NVS failed. */
int zephyr_step(void);

/* Stop measuring; `zephyr_step` returns 1 once every reading is acknowledged. */
void zephyr_stop(void);

#endif
