/* The device on an ESP32: sockets of lwIP, esp_tls, NVS, two partitions of an update. For ESP-IDF 5.5 and Arduino. */
#ifndef WAYPOST_ESP32_PORT_H
#define WAYPOST_ESP32_PORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Texts have to last as long as the program. */
struct esp32_settings {
    const char *host;
    uint16_t port, http_port;      /* of MQTT and HTTP, with TLS if `ca` is set; http_port 0: no time and no updates */
    const char *device, *password; /* password NULL: the certificate logs in */
    const char *ca, *certificate, *key; /* PEM, or NULL */
    uint32_t slots, interval_ms;   /* readings that are kept: 7 of them take a page of 4 KiB of NVS */
    uint32_t ask_s, trial_s;       /* of the update */
    size_t (*measure)(void *context, char *json, size_t size); /* as in waypost_device.h */
    void (*log)(void *context, const char *text);
};

/* Begin; call it once NVS is initialized and the network stack runs. Returns 0, or -1 after it has logged why. */
int esp32_begin(const struct esp32_settings *settings);

/* Do what is due; it may restart the chip. Looking a name up blocks it for some seconds at worst. Returns 0, 1 once the
 * device was stopped and everything is delivered, or -1 if NVS failed. */
int esp32_step(void);

/* Stop measuring; `esp32_step` returns 1 once every reading is acknowledged. */
void esp32_stop(void);

#ifdef __cplusplus
}
#endif

#endif
