/*
 * Check of the portable core in `firmware_examples/portable_c` with a gateway and a flash in memory.
 *
 * It runs on this machine under sanitizers, and on an emulated Cortex-M3. It prints "ok", or the line that failed.
 * First a life with a reset, a torn slot and a full ring; then many lives with a gateway that sends any bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "waypost_device.h"

enum { SLOTS = 8, ROUNDS = 400, STEPS = 200 };

#define CHECK(condition)                             \
    do {                                             \
        if (!(condition)) {                          \
            printf("line %d: %s\n", __LINE__, #condition); \
            exit(1);                                 \
        }                                            \
    } while (0)

static uint8_t flash[SLOTS * WP_SLOT_BYTES];
static uint8_t sent[8192], coming[512];
static size_t sent_length, coming_length, coming_taken;
static uint32_t now_ms, seed = 1;
static int is_open, refuses, is_random;

static uint32_t chance(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static int port_open(void *context) {
    (void)context;
    if (refuses) return -1;
    is_open = 1;
    sent_length = coming_length = coming_taken = 0;
    return 0;
}

static int port_send(void *context, const uint8_t *data, size_t length) {
    (void)context;
    CHECK(is_open);
    CHECK(length > 0);
    if (is_random && chance() % 16 == 0) return chance() % 2 ? 0 : -1;
    if (is_random && chance() % 4 == 0) length = 1;
    if (sent_length + length > sizeof sent) sent_length = 0;
    memcpy(sent + sent_length, data, length);
    sent_length += length;
    return (int)length;
}

static int port_receive(void *context, uint8_t *data, size_t size) {
    (void)context;
    CHECK(is_open);
    size_t there = coming_length - coming_taken;
    if (!there) return 0;
    if (there > size) there = size;
    memcpy(data, coming + coming_taken, there);
    coming_taken += there;
    return (int)there;
}

static void port_close(void *context) {
    (void)context;
    is_open = 0;
}

static int port_read(void *context, uint32_t slot, uint8_t *data) {
    (void)context;
    CHECK(slot < SLOTS);
    memcpy(data, flash + slot * WP_SLOT_BYTES, WP_SLOT_BYTES);
    return 0;
}

static int port_write(void *context, uint32_t slot, const uint8_t *data) {
    (void)context;
    CHECK(slot < SLOTS);
    memcpy(flash + slot * WP_SLOT_BYTES, data, WP_SLOT_BYTES);
    return 0;
}

static uint32_t port_ticks(void *context) {
    (void)context;
    return now_ms;
}

static uint32_t port_time(void *context) {
    (void)context;
    return 1767225600;
}

static uint32_t port_random(void *context) {
    (void)context;
    return chance();
}

static size_t port_measure(void *context, char *json, size_t size) {
    static const char text[] = "\"celsius\":21.5";
    (void)context;
    CHECK(size >= sizeof text);
    memcpy(json, text, sizeof text - 1);
    return sizeof text - 1;
}

static void port_log(void *context, const char *text) {
    (void)context;
    CHECK(text && *text);
}

static const struct wp_port port = {NULL, port_open, port_send, port_receive, port_close, port_read, port_write,
                                    port_ticks, port_time, port_random, port_measure, port_log};
static const struct wp_settings settings = {"pump7", "secret", SLOTS, 1000};
static struct wp_device device;

static void receive(const void *data, size_t length) {
    memcpy(coming, data, length);
    coming_length = length;
    coming_taken = 0;
}

static int sent_has(const char *text) {
    size_t length = strlen(text);
    for (size_t at = 0; at + length <= sent_length; at++)
        if (!memcmp(sent + at, text, length)) return 1;
    return 0;
}

static void step(uint32_t ms) {
    now_ms += ms;
    CHECK(wp_step(&device) == WP_RUNS);
}

static void connect_device(void) {
    step(10000);
    step(0);
    CHECK(is_open);
    CHECK(sent[0] == 0x10 && sent_has("MQTT") && sent_has("secret") && sent_has("status/pump7") && sent_has("offline"));
    sent_length = 0;
    receive("\x20\x02\x00\x00", 4);
    step(0);
    CHECK(sent_has("command/pump7/#") && sent_has("online"));
}

static void check_a_life(void) {
    CHECK(!wp_begin(&device, &settings, &port));
    refuses = 1;
    step(0);
    step(1000);
    CHECK(wp_waiting(&device) == 2 && !is_open);
    refuses = 0;
    connect_device();
    CHECK(sent_has("\"seq\":0,\"at\":1767225600,\"celsius\":21.5}") && sent_has("\"seq\":1,"));
    receive("\x40\x02\x00\x01", 4); /* PUBACK of reading 0 */
    step(0);
    CHECK(device.acknowledged == 1);

    static const char command[] = "\x32\x36\x00\x0d" "command/pump7\x00\x07" "{\"interval_ms\": 500, \"id\": [1, \"a]\"]}";
    receive(command, sizeof command - 1);
    sent_length = 0;
    step(0);
    CHECK(sent_has("{\"id\":[1, \"a]\"],\"status\":200,\"interval_ms\":500}"));
    CHECK(!memcmp(sent + sent_length - 4, "\x40\x02\x00\x07", 4)); /* acknowledged after the answer */

    CHECK(!wp_begin(&device, &settings, &port)); /* a reset: reading 1 and later ones are still there */
    uint32_t next = device.next;
    CHECK(device.acknowledged <= 1 && wp_waiting(&device) >= 2);
    flash[(next - 1) % SLOTS * WP_SLOT_BYTES + 20] ^= 1; /* a torn slot */
    CHECK(!wp_begin(&device, &settings, &port) && device.next == next - 1);

    refuses = 1;
    for (int number = 0; number < 3 * SLOTS; number++) step(1000);
    CHECK(wp_waiting(&device) == SLOTS && device.dropped > 0);
    refuses = 0;
    connect_device();
    wp_stop(&device);
    uint8_t acks[4 * SLOTS];
    for (uint32_t index = 0; index < SLOTS; index++) {
        uint32_t id = (device.acknowledged + index) % 32768 + 1;
        const uint8_t ack[4] = {0x40, 2, (uint8_t)(id >> 8), (uint8_t)id};
        memcpy(acks + 4 * index, ack, 4);
    }
    receive(acks, sizeof acks);
    enum wp_status status = WP_RUNS;
    for (int turn = 0; turn < 10 && status == WP_RUNS; turn++) status = wp_step(&device);
    CHECK(status == WP_FINISHED && !wp_waiting(&device) && !is_open);
    CHECK(sent[sent_length - 2] == 0xE0); /* DISCONNECT: the gateway drops the last will */
}

static int answered(const char *body, const char *answer) {
    uint8_t packet[200] = {0x32, 0, 0, 13};
    size_t length = strlen(body);
    memcpy(packet + 4, "command/pump7\x00\x09", 15);
    memcpy(packet + 19, body, length);
    packet[1] = (uint8_t)(17 + length);
    sent_length = 0;
    receive(packet, 19 + length);
    step(0);
    return sent_has(answer) && is_open;
}

static void check_what_is_malformed(void) {
    static const char *const commands[] = {"", "[1]", "{", "{\"id", "{\"id\":\"a\\", "{\"id\":[1", "{\"stop\":true",
                                           "{\"stop\" true}", "{,}", "{\"id\":}", "{\"stop\":false,\"id\":\"a\\\"}"};
    memset(flash, 0, sizeof flash);
    CHECK(!wp_begin(&device, &settings, &port));
    refuses = 1;
    step(0);
    step(1000);
    refuses = 0;
    connect_device();
    CHECK(device.next == 3);
    const uint8_t acks[] = {0x40, 2, 0, 4, 0x40, 2, 0, 2, 0x40, 2, 0, 1, 0x40, 2, 0, 3}; /* reading 3 does not exist */
    receive(acks, 8);
    step(0);
    CHECK(device.acknowledged == 0); /* reading 1 waits for reading 0 */
    receive(acks + 8, 4);
    step(0);
    CHECK(device.acknowledged == 2);
    receive(acks + 12, 4);
    step(0);
    CHECK(device.acknowledged == 3);
    for (size_t index = 0; index < sizeof commands / sizeof *commands; index++)
        CHECK(answered(commands[index], "\"status\":400,\"error\":\"not a JSON object\"}"));
    CHECK(answered("{}", "unknown command") && answered("{\"interval_ms\":9}", "interval_ms has to be"));
    CHECK(answered("{\"interval_ms\":86400001}", "interval_ms has to be") && answered("{\"stop\":false}", "\"status\":200"));
    CHECK(answered("{\"stop\":false,\"id\":\"0123456789012345678901234567890123456789012345678\"}", "{\"status\":200"));
    receive("\x32\x06\x00\x03" "abc\x01", 8); /* a packet identifier of one byte */
    step(0);
    CHECK(!is_open);
}

/* A gateway that sends any bytes neither breaks the device nor takes a reading from it that it has not acknowledged. */
static void check_any_bytes(void) {
    static const uint8_t firsts[] = {0x20, 0x30, 0x32, 0x3d, 0x40, 0x90, 0xd0, 0xe0, 0x00};
    is_random = 1;
    for (int round = 0; round < ROUNDS; round++) {
        memset(flash, 0, sizeof flash);
        CHECK(!wp_begin(&device, &settings, &port));
        for (int turn = 0; turn < STEPS; turn++) {
            if (is_open && coming_taken == coming_length) {
                uint8_t data[200];
                size_t length = chance() % sizeof data;
                for (size_t at = 0; at < length; at++) data[at] = (uint8_t)chance();
                if (length > 4 && chance() % 4) {
                    data[0] = firsts[chance() % sizeof firsts];
                    data[1] = (uint8_t)(chance() % 4 ? length - 2 : chance());
                    if (data[0] == 0x20) memcpy(data, "\x20\x02\x00\x00", 4);
                    if (data[0] == 0x32) memcpy(data + 2, "\x00\x01" "c\x00\x01{\"id\":", length > 12 ? 11 : 1);
                }
                receive(data, length);
            }
            uint32_t before = device.next;
            step(chance() % 400);
            CHECK(wp_waiting(&device) <= SLOTS && device.next - before <= 1);
            CHECK(device.out_sent <= device.out_length && device.out_length <= WP_PACKET_MAX);
        }
        device.port->close(NULL);
    }
}

int main(void) {
    check_a_life();
    check_what_is_malformed();
    check_any_bytes();
    printf("ok\n");
    return 0;
}
