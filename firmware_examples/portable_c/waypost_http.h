/* Way of an update to the gateway: its HTTP routes of artefacts, over one connection that is kept. */
#ifndef WAYPOST_HTTP_H
#define WAYPOST_HTTP_H

#include "waypost_update.h"

#define WH_REQUEST_MAX 1024u
#define WH_LINE_MAX 96u    /* of a header; the rest of a longer line is skipped */

/* What a board provides: a connection as in `struct wp_port`, to the port of the gateway's HTTP or HTTPS listener. */
struct wh_port {
    void *context;
    int (*open)(void *context);
    int (*send)(void *context, const uint8_t *data, size_t length);
    int (*receive)(void *context, uint8_t *data, size_t size);
    void (*close)(void *context);
    uint32_t (*ticks_ms)(void *context);
    void (*log)(void *context, const char *text);
};

struct wh_settings {
    const char *host;       /* field Host of requests */
    const char *device;
    const char *password;   /* NULL: a certificate is shown by TLS */
};

/* State of the client; about 1 KiB. Its members are for waypost_http.c. */
struct wh_client {
    const struct wh_port *port;
    const struct wh_settings *settings;
    uint8_t question, stage, is_open, is_reused, closes, has_length, has_answer;
    uint32_t status, left, heard_ms;
    uint32_t date_s, date_ms; /* time of the gateway, and of `ticks_ms` when it came */
    char line[WH_LINE_MAX];
    size_t line_length, header_length;
    uint8_t out[WH_REQUEST_MAX];
    size_t out_length, out_sent;
};

/* Prepare; `transport` is for `wu_begin`. Returns 0, or -1 if a setting is too long. */
int wh_begin(struct wh_client *client, struct wu_transport *transport, const struct wh_settings *settings,
             const struct wh_port *port);

/* Return the time of the gateway, s since 1970, after the field Date of its last answer; 0 while it is unknown. */
uint32_t wh_time_s(const struct wh_client *client);

#endif
