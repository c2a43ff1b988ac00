/* See waypost_device.h, and firmware_examples/README.md for the behaviour and the format of the spool. */
#include "waypost_device.h"

#include <string.h>

enum { HEADER_BYTES = 16, FORMAT = 1 };
enum { RETRY_MS_MIN = 250, RETRY_MS_MAX = 8000, CONNECT_MS_MAX = 10000 };
enum { INTERVAL_MS_MIN = 10, INTERVAL_MS_MAX = 86400000 };
enum { SUBSCRIBE_ID = 65535, STATUS_ID = 65534, ANSWER_ID_FIRST = 40000, ANSWER_IDS = 16, READING_IDS = 32768 };
enum { CONNECT = 0x10, CONNACK = 2, PUBLISH = 3, PUBACK = 4, SUBACK = 9, PINGRESP = 13 };
enum { CLOSED, OPENING, CONNECTED, ENDING };
enum { STAGE_FIRST, STAGE_LENGTH, STAGE_BODY };

/* --- bytes ------------------------------------------------------------------------------------------------------ */

static void put_u16le(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static void put_u32le(uint8_t *at, uint32_t value) {
    put_u16le(at, value);
    put_u16le(at + 2, value >> 16);
}

static uint32_t u16le(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static uint32_t u32le(const uint8_t *at) { return u16le(at) | u16le(at + 2) << 16; }
static uint32_t u16be(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

static uint32_t crc32_of(const uint8_t *data, size_t length) {
    uint32_t crc = 0xFFFFFFFFu;
    while (length--) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

/* A text that is built in a fixed buffer; `length` is more than `size` if it did not fit. */
struct text {
    uint8_t *data;
    size_t size, length;
};

static void put_bytes(struct text *text, const void *data, size_t length) {
    if (text->length <= text->size && length <= text->size - text->length) {
        memcpy(text->data + text->length, data, length);
        text->length += length;
    } else {
        text->length = text->size + 1;
    }
}

static void put(struct text *text, const char *words) { put_bytes(text, words, strlen(words)); }

static void put_byte(struct text *text, unsigned value) {
    uint8_t byte = (uint8_t)value;
    put_bytes(text, &byte, 1);
}

static void put_number(struct text *text, uint32_t value) {
    char digits[10];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    put_bytes(text, digits + at, sizeof digits - at);
}

/* --- the spool -------------------------------------------------------------------------------------------------- */

uint32_t wp_waiting(const struct wp_device *device) { return device->next - device->acknowledged; }

int wp_delivered(const struct wp_device *device) { return device->delivered; }

static void advance(struct wp_device *device) {
    while (device->early & 1) {
        device->early >>= 1;
        device->acknowledged++;
    }
}

/* Load a slot; returns the length of its content, or -1 if it is empty, torn or of another place. */
static int load_slot(struct wp_device *device, uint32_t slot) {
    uint8_t *data = device->slot;
    if (device->port->read_slot(device->port->context, slot, data)) return -1;
    uint32_t length = u16le(data + 12);
    if (u16le(data + 14) != FORMAT || length > WP_CONTENT_MAX || u32le(data + 4) % device->settings->slots != slot)
        return -1;
    return crc32_of(data + 4, HEADER_BYTES - 4 + length) == u32le(data) ? (int)length : -1;
}

static void load_spool(struct wp_device *device) {
    for (uint32_t slot = 0; slot < device->settings->slots; slot++) {
        if (load_slot(device, slot) < 0) continue;
        uint32_t number = u32le(device->slot + 4), acknowledged = u32le(device->slot + 8);
        if (number >= device->next) device->next = number + 1;
        if (acknowledged > device->acknowledged) device->acknowledged = acknowledged;
    }
    if (wp_waiting(device) > device->settings->slots) device->acknowledged = device->next - device->settings->slots;
    device->sending = device->acknowledged;
}

static void measure(struct wp_device *device) {
    const struct wp_port *port = device->port;
    if (wp_waiting(device) == device->settings->slots) { /* full: drop the oldest */
        device->dropped++;
        device->early |= 1;
        advance(device);
        if ((int32_t)(device->sending - device->acknowledged) < 0) device->sending = device->acknowledged;
    }
    memset(device->slot, 0, sizeof device->slot);
    struct text json = {device->slot + HEADER_BYTES, WP_CONTENT_MAX, 0};
    put(&json, "{\"device\":\"");
    put(&json, device->settings->device);
    put(&json, "\",\"boot\":\"");
    put(&json, device->boot);
    put(&json, "\",\"seq\":");
    put_number(&json, device->next);
    uint32_t at = port->time_s(port->context);
    if (at) {
        put(&json, ",\"at\":");
        put_number(&json, at);
    }
    put(&json, ",");
    size_t room = json.length < json.size ? json.size - json.length - 1 : 0;
    size_t used = port->measure(port->context, (char *)json.data + json.length, room);
    json.length += used <= room ? used : 0;
    if (used == 0 || used > room) json.length--; /* no members: the comma goes */
    put(&json, "}");
    put_u32le(device->slot + 4, device->next);
    put_u32le(device->slot + 8, device->acknowledged);
    put_u16le(device->slot + 12, (uint32_t)json.length);
    put_u16le(device->slot + 14, FORMAT);
    put_u32le(device->slot, crc32_of(device->slot + 4, HEADER_BYTES - 4 + json.length));
    if (port->write_slot(port->context, device->next % device->settings->slots, device->slot)) {
        port->log(port->context, "cannot store a reading; check the storage");
        device->storage_failed = 1;
        return;
    }
    device->next++;
}

static void acknowledge(struct wp_device *device, uint32_t packet_id) {
    uint32_t ahead = (packet_id - 1 - device->acknowledged) % READING_IDS;
    if (packet_id >= 1 && packet_id <= READING_IDS && ahead < WP_WINDOW
        && ahead < device->sending - device->acknowledged) {
        device->early |= (uint32_t)1 << ahead;
        if ((int32_t)(device->acknowledged + ahead - device->first) >= 0) device->delivered = 1;
        device->retry_ms = RETRY_MS_MIN;
        advance(device);
    }
}

/* --- commands --------------------------------------------------------------------------------------------------- */

struct scanner {
    const char *at, *end;
};

static void skip_space(struct scanner *scan) {
    while (scan->at < scan->end && strchr(" \t\r\n", *scan->at) && *scan->at) scan->at++;
}

static int take(struct scanner *scan, char wanted) {
    skip_space(scan);
    if (scan->at >= scan->end || *scan->at != wanted) return 0;
    scan->at++;
    return 1;
}

/* Skip a string behind its first quote; returns 0 if it does not end. */
static int skip_string(struct scanner *scan) {
    while (scan->at < scan->end) {
        char c = *scan->at++;
        if (c == '"') return 1;
        if (c == '\\') scan->at++;
    }
    return 0;
}

/* Skip a value; returns 0 if it is malformed. Brackets are counted, so a nested value is skipped as a whole. */
static int skip_value(struct scanner *scan) {
    unsigned depth = 0;
    do {
        skip_space(scan);
        if (scan->at >= scan->end) return 0;
        char c = *scan->at++;
        if (c == '"') {
            if (!skip_string(scan)) return 0;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (!depth--) return 0;
        } else if (c == ',' || c == ':') {
            if (!depth) return 0;
        } else {
            while (scan->at < scan->end && *scan->at && !strchr(" \t\r\n,:{}[]\"", *scan->at)) scan->at++;
        }
    } while (depth);
    return 1;
}

static int is(const char *word, const char *from, const char *to) {
    return strlen(word) == (size_t)(to - from) && !memcmp(word, from, strlen(word));
}

/* Return a whole number in the range of intervals; 0 for anything else. */
static uint32_t interval_of(const char *from, const char *to) {
    uint32_t value = 0;
    if (to - from > 8) return 0;
    for (; from < to; from++) {
        if (*from < '0' || *from > '9') return 0;
        value = value * 10 + (uint32_t)(*from - '0');
    }
    return value >= INTERVAL_MS_MIN && value <= INTERVAL_MS_MAX ? value : 0;
}

/* Obey a command; returns NULL, or what is wrong with it. The same command twice has the effect of one. */
static const char *obey(struct wp_device *device, const char *body, size_t length) {
    static const char malformed[] = "not a JSON object";
    struct scanner scan = {body, body + length};
    uint32_t interval_ms = device->interval_ms;
    int known = 0, stop = 0;
    device->id_length = 0;
    if (!take(&scan, '{')) return malformed;
    if (!take(&scan, '}')) {
        do {
            if (!take(&scan, '"')) return malformed;
            const char *key = scan.at;
            if (!skip_string(&scan)) return malformed;
            const char *key_end = scan.at - 1;
            if (!take(&scan, ':')) return malformed;
            skip_space(&scan);
            const char *value = scan.at;
            if (!skip_value(&scan) || scan.at > scan.end) return malformed;
            if (is("interval_ms", key, key_end)) {
                interval_ms = interval_of(value, scan.at);
                known = 1;
            } else if (is("stop", key, key_end)) {
                stop = is("true", value, scan.at);
                known = 1;
            } else if (is("id", key, key_end) && (size_t)(scan.at - value) <= sizeof device->id) {
                device->id_length = (size_t)(scan.at - value);
                memcpy(device->id, value, device->id_length);
            }
        } while (take(&scan, ','));
        if (!take(&scan, '}')) return malformed;
    }
    if (!known) return "unknown command";
    if (!interval_ms) return "interval_ms has to be 10 to 86400000";
    if (interval_ms != device->interval_ms) device->due_ms = device->measured_ms + interval_ms;
    device->interval_ms = interval_ms;
    if (stop) wp_stop(device);
    return NULL;
}

/* --- packets that are sent -------------------------------------------------------------------------------------- */

/* Build a packet in `out`; the fixed header takes three bytes, so that its length may be known last. */
static struct text packet_begin(struct wp_device *device) {
    struct text text = {device->out, sizeof device->out, 3};
    return text;
}

static void packet_end(struct wp_device *device, struct text *text, unsigned first) {
    size_t remaining = text->length - 3;
    size_t start = remaining < 128 ? 1 : 0;
    device->out[start] = (uint8_t)first;
    if (remaining < 128) {
        device->out[2] = (uint8_t)remaining;
    } else {
        device->out[1] = (uint8_t)(remaining | 0x80);
        device->out[2] = (uint8_t)(remaining >> 7);
    }
    device->out_sent = start;
    device->out_length = text->length;
}

static void put_u16(struct text *text, uint32_t value) {
    put_byte(text, value >> 8);
    put_byte(text, value & 0xFF);
}

/* Put a string (section 1.5.3) of two parts. */
static void put_string(struct text *text, const char *one, const char *two, const char *three) {
    put_u16(text, (uint32_t)(strlen(one) + strlen(two) + strlen(three)));
    put(text, one);
    put(text, two);
    put(text, three);
}

static void send_connect(struct wp_device *device) {
    const struct wp_settings *settings = device->settings;
    struct text text = packet_begin(device);
    unsigned flags = 0x04 | 0x08 | 0x20; /* a will, QoS 1, retained; the session is kept */
    if (settings->password) flags |= 0xC0;
    put_string(&text, "MQTT", "", "");
    put_byte(&text, 4);
    put_byte(&text, flags);
    put_u16(&text, WP_KEEP_ALIVE_S);
    put_string(&text, settings->device, "", "");
    put_string(&text, "status/", settings->device, "");
    put_string(&text, "offline", "", "");
    if (settings->password) {
        put_string(&text, settings->device, "", "");
        put_string(&text, settings->password, "", "");
    }
    packet_end(device, &text, CONNECT);
}

static void send_publish(struct wp_device *device, const char *topic, uint32_t id, int retain, const void *body,
                         size_t length) {
    struct text text = packet_begin(device);
    put_string(&text, topic, device->settings->device, "");
    put_u16(&text, id);
    put_bytes(&text, body, length);
    packet_end(device, &text, 0x32u | (retain ? 1u : 0u));
}

static void send_answer(struct wp_device *device) {
    uint8_t body[160];
    struct text json = {body, sizeof body, 0};
    put(&json, "{");
    if (device->id_length) {
        put(&json, "\"id\":");
        put_bytes(&json, device->id, device->id_length);
        put(&json, ",");
    }
    put(&json, "\"status\":");
    put_number(&json, device->error ? 400 : 200);
    if (device->error) {
        put(&json, ",\"error\":\"");
        put(&json, device->error);
        put(&json, "\"}");
    } else {
        put(&json, ",\"interval_ms\":");
        put_number(&json, device->interval_ms);
        put(&json, "}");
    }
    device->answer_id = (uint16_t)((device->answer_id + 1) % ANSWER_IDS);
    send_publish(device, "command-response/", ANSWER_ID_FIRST + device->answer_id, 0, body, json.length);
}

static void send_reading(struct wp_device *device) {
    uint32_t number = device->sending++;
    int length = load_slot(device, number % device->settings->slots);
    if (length < 0 || u32le(device->slot + 4) != number) { /* damaged: nothing is left to send */
        acknowledge(device, number % READING_IDS + 1);
        return;
    }
    send_publish(device, "plant/", number % READING_IDS + 1, 0, device->slot + HEADER_BYTES, (size_t)length);
}

/* Build the next packet, in the order of their importance. */
static void send_next(struct wp_device *device, uint32_t now) {
    if (device->state != CONNECTED) return;
    if (device->subscribe_due) {
        struct text text = packet_begin(device);
        device->subscribe_due = 0;
        put_u16(&text, SUBSCRIBE_ID);
        put_string(&text, "command/", device->settings->device, "/#");
        put_byte(&text, 1);
        packet_end(device, &text, 0x82);
    } else if (device->online_due) {
        device->online_due = 0;
        send_publish(device, "status/", STATUS_ID, 1, "online", 6);
    } else if (device->answer_due) {
        device->answer_due = 0;
        send_answer(device);
    } else if (device->command_ack_due) { /* last: without it the command comes again after a reset */
        struct text text = packet_begin(device);
        device->command_ack_due = 0;
        put_u16(&text, device->command_id);
        packet_end(device, &text, 0x40);
    } else if (!device->pinged && now - device->received_ms > WP_KEEP_ALIVE_S * 500) {
        struct text text = packet_begin(device);
        device->pinged = 1;
        packet_end(device, &text, 0xC0);
    } else if (device->stopping == 1 && !wp_waiting(device)) {
        device->stopping = 2;
        send_publish(device, "status/", STATUS_ID, 1, "offline", 7);
    } else if (device->stopping == 2) {
        struct text text = packet_begin(device);
        device->state = ENDING;
        packet_end(device, &text, 0xE0);
    } else if (device->sending != device->next && device->sending - device->acknowledged < WP_WINDOW) {
        send_reading(device);
    }
}

/* --- packets that are received ---------------------------------------------------------------------------------- */

static int fail(struct wp_device *device, const char *why) {
    device->port->log(device->port->context, why);
    return -1;
}

static int handle_connack(struct wp_device *device, uint32_t now) {
    static const char *const reasons[] = {
        "", "refused: the gateway does not speak MQTT 3.1.1", "refused: the name is not valid, see the setting device",
        "refused: the gateway is not ready",
        "refused: wrong user or password; `waypost user rotate` at the gateway makes a new one",
        "refused: wrong user or password, or no right; `waypost user rotate` makes a new one, `waypost client refusals` "
        "has the reason"};
    if (device->state != OPENING || device->in_kept != 2) return fail(device, "malformed answer");
    if (device->in[1]) return fail(device, device->in[1] < 6 ? reasons[device->in[1]] : "refused");
    device->state = CONNECTED;
    device->sending = device->acknowledged;
    device->subscribe_due = device->online_due = 1;
    device->received_ms = now;
    device->port->log(device->port->context, "connected");
    return 0;
}

static int handle_publish(struct wp_device *device) {
    uint32_t topic = device->in_kept >= 2 ? u16be(device->in) : 0, qos = device->in_first >> 1 & 3, at = 2 + topic;
    if (qos > 1 || at + (qos ? 2 : 0) > device->in_kept) return fail(device, "malformed command");
    if (qos) {
        device->command_id = (uint16_t)u16be(device->in + at);
        device->command_ack_due = 1;
        at += 2;
    }
    device->id_length = 0;
    if (device->in_remaining > device->in_kept)
        device->error = "the command is too long";
    else
        device->error = obey(device, (const char *)device->in + at, device->in_kept - at);
    device->port->log(device->port->context, device->error ? "command refused" : "command obeyed");
    device->answer_due = 1;
    return 0;
}

static int handle_packet(struct wp_device *device, uint32_t now) {
    switch (device->in_first >> 4) {
    case CONNACK: return handle_connack(device, now);
    case PUBLISH: return handle_publish(device);
    case PUBACK:
        if (device->in_kept < 2) return fail(device, "malformed acknowledgement");
        acknowledge(device, u16be(device->in));
        return 0;
    case SUBACK:
        if (device->in_kept == 3 && device->in[2] & 0x80) return fail(device, "no right to receive commands");
        return 0;
    case PINGRESP: device->pinged = 0; return 0;
    default: return fail(device, "unexpected packet");
    }
}

/* Take one byte; returns -1 if the connection has to end. */
static int take_byte(struct wp_device *device, uint8_t byte, uint32_t now) {
    if (device->in_stage == STAGE_FIRST) {
        device->in_first = byte;
        device->in_remaining = device->in_kept = 0;
        device->in_shift = 0;
        device->in_stage = STAGE_LENGTH;
        return 0;
    }
    if (device->in_stage == STAGE_LENGTH) {
        device->in_remaining |= (uint32_t)(byte & 0x7F) << device->in_shift;
        device->in_shift = (uint8_t)(device->in_shift + 7);
        if (byte & 0x80) return device->in_shift < 28 ? 0 : fail(device, "malformed length");
        device->in_stage = STAGE_BODY;
        device->in_left = device->in_remaining;
    } else {
        if (device->in_kept < sizeof device->in) device->in[device->in_kept++] = byte;
        device->in_left--;
    }
    if (device->in_left) return 0;
    device->in_stage = STAGE_FIRST;
    return handle_packet(device, now);
}

/* --- the loop --------------------------------------------------------------------------------------------------- */

static void disconnected(struct wp_device *device, uint32_t now) {
    device->port->close(device->port->context);
    if (device->state == CONNECTED) device->port->log(device->port->context, "disconnected");
    device->state = CLOSED;
    if (device->stopping == 2) device->stopping = 1;
    /* Jitter, so that a thousand devices do not return at once: half of the delay to all of it. */
    uint32_t half = device->retry_ms / 2;
    device->retry_at_ms = now + half + device->port->random(device->port->context) % (half + 1);
    device->retry_ms = device->retry_ms < RETRY_MS_MAX / 2 ? device->retry_ms * 2 : RETRY_MS_MAX;
}

static void connect_again(struct wp_device *device, uint32_t now) {
    device->out_length = device->out_sent = 0;
    device->in_stage = STAGE_FIRST;
    device->subscribe_due = device->online_due = device->answer_due = device->command_ack_due = device->pinged = 0;
    device->state = OPENING;
    device->opened_ms = now;
    if (device->port->open(device->port->context))
        disconnected(device, now);
    else
        send_connect(device);
}

/* Send until the network is full; returns -1 if the connection is broken. */
static int send_due(struct wp_device *device, uint32_t now) {
    for (;;) {
        if (device->out_sent == device->out_length) {
            device->out_length = device->out_sent = 0;
            send_next(device, now);
            if (!device->out_length) return 0;
        }
        int sent = device->port->send(device->port->context, device->out + device->out_sent,
                                      device->out_length - device->out_sent);
        if (sent <= 0) return sent;
        device->out_sent += (size_t)sent;
    }
}

/* Receive what is there, one command at a time; returns -1 if the connection has to end. */
static int receive_due(struct wp_device *device, uint32_t now) {
    uint8_t data[64];
    while (!device->answer_due && !device->command_ack_due) {
        /* A packet of a command ends a block: what is behind it in the block has to wait, so blocks are of one byte
         * until the body of a packet is reached. */
        size_t want = 1;
        if (device->in_stage == STAGE_BODY) want = device->in_left < sizeof data ? device->in_left : sizeof data;
        int got = device->port->receive(device->port->context, data, want);
        if (got <= 0) return got;
        device->received_ms = now;
        for (int index = 0; index < got; index++)
            if (take_byte(device, data[index], now)) return -1;
    }
    return 0;
}

static int serve(struct wp_device *device, uint32_t now) {
    if (device->state == OPENING && now - device->opened_ms > CONNECT_MS_MAX) return fail(device, "no answer");
    if (device->state == CONNECTED && now - device->received_ms > WP_KEEP_ALIVE_S * 1500)
        return fail(device, "the gateway is silent");
    if (send_due(device, now) || (device->state != ENDING && receive_due(device, now))) return -1;
    return send_due(device, now);
}

static int settings_are_right(const struct wp_settings *settings) {
    const char *name = settings->device;
    size_t length = strlen(name);
    if (!length || length > WP_NAME_MAX || strpbrk(name, "/+#\"\\")) return 0;
    /* CONNECT holds the name three times and the password once. */
    if (settings->password && strlen(settings->password) + 3 * length > WP_PACKET_MAX - 64) return 0;
    return settings->slots > 0 && settings->interval_ms >= INTERVAL_MS_MIN && settings->interval_ms <= INTERVAL_MS_MAX;
}

int wp_begin(struct wp_device *device, const struct wp_settings *settings, const struct wp_port *port) {
    static const char digits[] = "0123456789abcdef";
    if (!settings_are_right(settings)) return -1;
    memset(device, 0, sizeof *device);
    device->port = port;
    device->settings = settings;
    device->interval_ms = settings->interval_ms;
    device->retry_ms = RETRY_MS_MIN;
    device->due_ms = device->retry_at_ms = port->ticks_ms(port->context);
    uint32_t boot = port->random(port->context);
    for (int index = 0; index < 8; index++) device->boot[index] = digits[boot >> 4 * index & 15];
    load_spool(device);
    device->first = device->next;
    return 0;
}

void wp_stop(struct wp_device *device) {
    if (!device->stopping) device->stopping = 1;
}

enum wp_status wp_step(struct wp_device *device) {
    uint32_t now = device->port->ticks_ms(device->port->context);
    if (!device->stopping && (int32_t)(now - device->due_ms) >= 0) {
        measure(device);
        if (device->storage_failed) return WP_STORAGE_FAILED;
        device->measured_ms = now;
        device->due_ms += device->interval_ms;
        if ((int32_t)(now - device->due_ms) >= 0) device->due_ms = now + device->interval_ms; /* late: no burst */
    }
    if (device->state == CLOSED) {
        if (device->stopping && !wp_waiting(device)) return WP_FINISHED;
        if ((int32_t)(now - device->retry_at_ms) >= 0) connect_again(device, now);
    } else if (serve(device, now)) {
        disconnected(device, now);
    } else if (device->state == ENDING && device->out_sent == device->out_length) {
        device->port->close(device->port->context);
        return WP_FINISHED;
    }
    return WP_RUNS;
}
