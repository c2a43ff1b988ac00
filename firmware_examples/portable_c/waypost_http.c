/* See waypost_http.h: HTTP/1.1 with one request at a time. An answer needs a Content-Length, as the gateway's have. */
#include "waypost_http.h"

#include <string.h>

enum { IDLE, SENDING, HEADERS, BODY };
enum { SILENCE_MS_MAX = 30000, CREDENTIALS_MAX = 200, CLOCK_SET_AFTER = 1700000000, HEADER_MAX = 8192 };

struct words {
    uint8_t *data;
    size_t size, length; /* `length` is more than `size` if it did not fit */
};

static void put_bytes(struct words *words, const char *from, size_t length) {
    if (words->length <= words->size && length <= words->size - words->length) {
        memcpy(words->data + words->length, from, length);
        words->length += length;
    } else {
        words->length = words->size + 1;
    }
}

static void put(struct words *words, const char *text) { put_bytes(words, text, strlen(text)); }

static void put_number(struct words *words, uint32_t value) {
    char digits[10];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    put_bytes(words, digits + at, sizeof digits - at);
}

static void put_base64(struct words *words, const uint8_t *data, size_t length) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t at = 0; at < length; at += 3) {
        uint32_t three = (uint32_t)data[at] << 16;
        if (at + 1 < length) three |= (uint32_t)data[at + 1] << 8;
        if (at + 2 < length) three |= data[at + 2];
        char four[4] = {letters[three >> 18], letters[three >> 12 & 63], letters[three >> 6 & 63], letters[three & 63]};
        if (at + 1 >= length) four[2] = '=';
        if (at + 2 >= length) four[3] = '=';
        put_bytes(words, four, sizeof four);
    }
}

static void put_credentials(struct words *words, const struct wh_settings *settings) {
    uint8_t pair[CREDENTIALS_MAX];
    struct words joined = {pair, sizeof pair, 0};
    put(&joined, settings->device);
    put(&joined, ":");
    put(&joined, settings->password);
    put(words, "Authorization: Basic ");
    if (joined.length > joined.size) words->length = words->size + 1;
    else put_base64(words, pair, joined.length);
    put(words, "\r\n");
}

static void put_hex(struct words *words, const uint8_t *digest) {
    static const char digits[] = "0123456789abcdef";
    for (size_t index = 0; index < WM_DIGEST_BYTES; index++) {
        char two[2] = {digits[digest[index] >> 4], digits[digest[index] & 15]};
        put_bytes(words, two, sizeof two);
    }
}

static void put_range(struct words *words, const struct wu_request *request) {
    put(words, "Range: bytes=");
    put_number(words, request->first);
    put(words, "-");
    put_number(words, request->first + request->count - 1);
    put(words, "\r\nIf-Range: \"");
    put_hex(words, request->sha256);
    put(words, "\"\r\n");
}

/* Write a request; returns 0, or -1 if it is too long. */
static int write_request(struct wh_client *client, const struct wu_request *request) {
    static const char *const ends[] = {"", "/manifest", "/image", "/report"};
    uint8_t content[192];
    struct words words = {client->out, sizeof client->out, 0}, body = {content, sizeof content, 0};
    put(&words, request->question == WU_REPORT ? "POST /artefacts" : "GET /artefacts");
    if (request->question != WU_LIST) {
        put(&words, "/");
        put(&words, request->name);
        put(&words, "/");
        put(&words, request->version);
        put(&words, ends[request->question]);
    }
    put(&words, " HTTP/1.1\r\nHost: ");
    put(&words, client->settings->host);
    put(&words, "\r\n");
    if (client->settings->password) put_credentials(&words, client->settings);
    if (request->question == WU_IMAGE) put_range(&words, request);
    if (request->question == WU_REPORT) {
        put(&body, "{\"state\":\"");
        put(&body, request->state);
        put(&body, "\",\"reason\":\"");
        put(&body, request->reason);
        if (request->sha256) {
            put(&body, "\",\"sha256\":\"");
            put_hex(&body, request->sha256);
        }
        put(&body, "\"}");
        put(&words, "Content-Type: application/json\r\nContent-Length: ");
        put_number(&words, (uint32_t)body.length);
        put(&words, "\r\n");
    }
    put(&words, "\r\n");
    put_bytes(&words, (const char *)content, body.length);
    client->out_length = words.length;
    return words.length <= words.size && body.length <= body.size ? 0 : -1;
}

static void close_connection(struct wh_client *client) {
    if (client->is_open) client->port->close(client->port->context);
    client->is_open = 0;
    client->stage = IDLE;
}

static int start_request(struct wh_client *client) {
    client->is_reused = client->is_open;
    if (!client->is_open) {
        if (client->port->open(client->port->context)) {
            client->port->close(client->port->context);
            return -1;
        }
        client->is_open = 1;
    }
    client->stage = SENDING;
    client->out_sent = client->line_length = client->header_length = 0;
    client->status = client->left = 0;
    client->closes = client->has_length = client->has_answer = 0;
    client->heard_ms = client->port->ticks_ms(client->port->context);
    return 0;
}

static int ask(void *context, const struct wu_request *request) {
    struct wh_client *client = context;
    if (client->stage != IDLE) close_connection(client); /* in the middle of an answer */
    client->question = (uint8_t)request->question;
    if (write_request(client, request)) return -1;
    return start_request(client);
}

/* --- answers ---------------------------------------------------------------------------------------------------- */

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

/* Return the value of the field if the line is of it, else NULL. `name` is in small letters, with its colon. */
static const char *field(const struct wh_client *client, const char *name) {
    size_t length = strlen(name), at = 0;
    for (; at < length; at++)
        if (lower(client->line[at]) != name[at]) return NULL;
    while (client->line[at] == ' ') at++;
    return client->line + at;
}

static int read_number(const char *text, uint32_t *value) {
    *value = 0;
    if (*text < '0' || *text > '9') return -1;
    for (; *text >= '0' && *text <= '9'; text++) {
        if (*value > 400000000u) return -1;
        *value = *value * 10 + (uint32_t)(*text - '0');
    }
    return 0;
}

/* Take the time of a field Date: "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110 section 5.6.7). */
static void take_date(struct wh_client *client, const char *text) {
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    static const uint16_t days_before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    uint32_t day, year, hour, minute, second, month = 0;
    if (strlen(text) < 25 || read_number(text + 5, &day) || read_number(text + 12, &year) || read_number(text + 17, &hour)
        || read_number(text + 20, &minute) || read_number(text + 23, &second) || year < 1970 || year > 2105 || !day)
        return;
    while (month < 12 && memcmp(months + 3 * month, text + 8, 3)) month++;
    if (month == 12) return;
    uint32_t leaps = (year - 1969) / 4 - (year > 2100), days = (year - 1970) * 365 + leaps + days_before[month] + day - 1;
    if (month > 1 && year % 4 == 0 && year != 2100) days++;
    uint32_t time_s = days * 86400 + hour * 3600 + minute * 60 + second;
    if (time_s <= CLOCK_SET_AFTER) return; /* the gateway has no time either */
    client->date_s = time_s;
    client->date_ms = client->port->ticks_ms(client->port->context);
}

uint32_t wh_time_s(const struct wh_client *client) {
    if (!client->date_s) return 0;
    return client->date_s + (client->port->ticks_ms(client->port->context) - client->date_ms) / 1000;
}

/* Take a line of the header; returns 1 behind the last one, -1 if it is malformed. */
static int take_line(struct wh_client *client) {
    const char *value;
    client->line[client->line_length] = 0;
    if (!client->status) return !strncmp(client->line, "HTTP/1.1 ", 9) ? read_number(client->line + 9, &client->status) : -1;
    if (!client->line_length) return client->has_length ? 1 : -1;
    if ((value = field(client, "content-length:")) != NULL) {
        client->has_length = 1;
        return read_number(value, &client->left);
    }
    if ((value = field(client, "date:")) != NULL) take_date(client, value);
    if ((value = field(client, "connection:")) != NULL && lower(*value) == 'c') client->closes = 1;
    return 0;
}

/* Read the header; returns 1 at its end, 0 for "not now", -1 for a broken connection. */
static int read_header(struct wh_client *client) {
    uint8_t byte;
    int got;
    while ((got = client->port->receive(client->port->context, &byte, 1)) > 0) {
        client->has_answer = 1;
        if (++client->header_length > HEADER_MAX) return -1;
        client->heard_ms = client->port->ticks_ms(client->port->context);
        if (byte == '\n') {
            int taken = take_line(client);
            client->line_length = 0;
            if (taken) return taken;
        } else if (byte != '\r' && client->line_length < sizeof client->line - 1) {
            client->line[client->line_length++] = (char)byte;
        }
    }
    return got;
}

/* Return whether the body is what was asked for. */
static int is_wanted(const struct wh_client *client) {
    return client->status == (client->question == WU_IMAGE ? 206u : 200u) && client->question != WU_REPORT;
}

static int result_of(const struct wh_client *client) {
    uint32_t status = client->status;
    if (is_wanted(client) || (client->question == WU_REPORT && status / 100 == 2)) return WU_END;
    if (client->question == WU_IMAGE && status == 416) return WU_END; /* it is shorter */
    if (client->question == WU_IMAGE && status == 200) return WU_GONE; /* it is another one now */
    if (status == 401 || status == 403)
        client->port->log(client->port->context, "update: wrong password, or no right; `waypost client refusals`");
    if (status / 100 != 4 || status == 401 || status == 403 || status == 408 || status == 429) return WU_LATER;
    return WU_GONE;
}

static int end_answer(struct wh_client *client) {
    int result = result_of(client);
    if (client->closes || result == WU_LATER || client->left) close_connection(client);
    client->stage = IDLE;
    return result;
}

/* The connection is broken. One that was kept may have been closed by the gateway: it is made again once. */
static int after_break(struct wh_client *client) {
    int again = client->is_reused && !client->has_answer;
    close_connection(client);
    return again && !start_request(client) ? WU_PENDING : WU_LATER;
}

static int send_rest(struct wh_client *client) {
    while (client->out_sent < client->out_length) {
        int sent = client->port->send(client->port->context, client->out + client->out_sent,
                                      client->out_length - client->out_sent);
        if (sent <= 0) return sent;
        client->out_sent += (size_t)sent;
    }
    client->stage = HEADERS;
    return 0;
}

static int read_body(struct wh_client *client, uint8_t *data, size_t size) {
    uint8_t skipped[64];
    int wanted = is_wanted(client);
    if (!client->left || (client->question == WU_IMAGE && client->status == 200)) return end_answer(client);
    if (!wanted) {
        data = skipped;
        size = sizeof skipped;
    }
    int got = client->port->receive(client->port->context, data, client->left < size ? client->left : size);
    if (got < 0) return after_break(client);
    if (got) client->heard_ms = client->port->ticks_ms(client->port->context);
    client->left -= (uint32_t)got;
    return wanted ? got : WU_PENDING;
}

static int receive(void *context, uint8_t *data, size_t size) {
    struct wh_client *client = context;
    if (client->stage == IDLE) return WU_LATER;
    if (client->port->ticks_ms(client->port->context) - client->heard_ms > SILENCE_MS_MAX) {
        client->port->log(client->port->context, "update: no answer");
        close_connection(client);
        return WU_LATER;
    }
    if (client->stage == SENDING && send_rest(client)) return after_break(client);
    if (client->stage == HEADERS) {
        int ended = read_header(client);
        if (ended < 0) return after_break(client);
        if (!ended) return WU_PENDING;
        client->stage = BODY;
    }
    return client->stage == BODY ? read_body(client, data, size) : WU_PENDING;
}

int wh_begin(struct wh_client *client, struct wu_transport *transport, const struct wh_settings *settings,
             const struct wh_port *port) {
    memset(client, 0, sizeof *client);
    client->port = port;
    client->settings = settings;
    transport->context = client;
    transport->ask = ask;
    transport->receive = receive;
    size_t pair = settings->password ? strlen(settings->device) + strlen(settings->password) + 1 : 0;
    return pair <= CREDENTIALS_MAX && strlen(settings->host) <= 128 ? 0 : -1;
}
