/*
 * Check of the update in `firmware_examples/portable_c` with a gateway, flash and boot loader in memory.
 *
 * It runs on this machine under sanitizers, and on an emulated Cortex-M3. It prints "ok", or the line that failed.
 * First manifests that are cut or changed; then many lives with power cuts in the middle of any call, each of which has
 * to end with the new image confirmed and reported, or with the old one and the reason reported; then any bytes as answers.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "waypost_http.h"
#include "waypost_update.h"

enum { SLOT = 3 * WU_PART_BYTES, LIVES = 600, STEPS = 20000, FUZZ_ROUNDS = 300, STARTS_MAX = 3 };

#define CHECK(condition)                                   \
    do {                                                   \
        if (!(condition)) {                                \
            printf("line %d: %s\n", __LINE__, #condition); \
            exit(1);                                       \
        }                                                  \
    } while (0)

static uint8_t image[SLOT + 1], slot[SLOT], records[2][WU_RECORD_BYTES], envelope[WM_HEADROOM + WM_ENVELOPE_MAX + 8];
static size_t envelope_length;
static uint32_t image_length, now_ms, seed = 1, hash;
static uint64_t kept; /* sequence of the image that the boot loader starts without a trial */
static int is_trial, starts, cuts_left, is_good, verdict = WM_FINE;
static char reported[16], reason[24];
static jmp_buf power;

static uint32_t chance(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* The power may fail here. */
static int cut(void) {
    if (cuts_left <= 0 || chance() % 24) return 0;
    cuts_left--;
    return 1;
}

/* --- manifest --------------------------------------------------------------------------------------------------- */

static uint8_t *put_text(uint8_t *at, const char *text) {
    *at++ = (uint8_t)(0x60 + strlen(text));
    memcpy(at, text, strlen(text));
    return at + strlen(text);
}

/* Put a number in its shortest form. */
static uint8_t *put_number(uint8_t *at, uint32_t value) {
    unsigned width = value < 24 ? 0 : value < 0x100 ? 1 : value < 0x10000 ? 2 : 4;
    *at++ = (uint8_t)(width == 4 ? 0x1A : width ? 0x17 + width : value);
    for (unsigned byte = width; byte; byte--) *at++ = (uint8_t)(value >> 8 * (byte - 1));
    return at;
}

static void hash_of(const uint8_t *data, size_t length, uint8_t *digest);

/* Build an envelope as a maker does; the signature is not looked at. */
static void make_envelope(uint32_t sequence, const char *board) {
    static const char header[] = "\xD2\x84\x58\x35\xA3\x01\x27\x03\x78\x25" "application/vnd.waypost.artefact+cbor" "\x04\x48";
    uint8_t *at = envelope + WM_HEADROOM, *payload;
    memcpy(at, header, sizeof header - 1);
    at += sizeof header - 1;
    memset(at, 7, WM_KEY_ID_BYTES);
    at += WM_KEY_ID_BYTES;
    *at++ = 0xA0;
    *at++ = 0x58;
    payload = at++;
    *at++ = 0xA8;
    *at++ = 1;
    *at++ = 1;
    *at++ = 2;
    at = put_text(at, "firmware");
    *at++ = 3;
    at = put_text(at, "pump");
    *at++ = 4;
    at = put_text(at, "2.0");
    *at++ = 5;
    at = put_number(at, sequence);
    *at++ = 6;
    *at++ = 0x81;
    at = put_text(at, board);
    *at++ = 8;
    at = put_number(at, image_length);
    *at++ = 9;
    *at++ = 0x58;
    *at++ = 32;
    hash_of(image, image_length, at);
    at += 32;
    *payload = (uint8_t)(at - payload - 1);
    *at++ = 0x58;
    *at++ = 64;
    memset(at, 9, 64);
    at += 64;
    envelope_length = (size_t)(at - envelope) - WM_HEADROOM;
}

/* --- ports ------------------------------------------------------------------------------------------------------ */

static int write_image(void *context, uint32_t at, const uint8_t *data, size_t length) {
    (void)context;
    CHECK(at % WU_BLOCK_BYTES == 0 && length <= WU_BLOCK_BYTES && at + length <= SLOT && !is_trial);
    if (cut()) {
        memcpy(slot + at, data, length / 2);
        longjmp(power, 1);
    }
    memcpy(slot + at, data, length);
    return 0;
}

static int read_image(void *context, uint32_t at, uint8_t *data, size_t length) {
    (void)context;
    CHECK(at + length <= SLOT);
    memcpy(data, slot + at, length);
    return 0;
}

static int read_record(void *context, uint32_t index, uint8_t *data) {
    (void)context;
    memcpy(data, records[index], WU_RECORD_BYTES);
    return 0;
}

static int write_record(void *context, uint32_t index, const uint8_t *data) {
    (void)context;
    if (cut()) {
        memcpy(records[index], data, 40); /* torn */
        longjmp(power, 1);
    }
    memcpy(records[index], data, WU_RECORD_BYTES);
    if (cut()) longjmp(power, 1);
    return 0;
}

static int try_image(void *context, uint32_t size) {
    (void)context;
    CHECK(size == image_length && !memcmp(slot, image, size)); /* nothing else is ever started */
    if (cut()) longjmp(power, 1);
    is_trial = 1;
    starts = 0;
    if (cut()) longjmp(power, 1);
    return 0;
}

static int is_confirmed(void *context) {
    (void)context;
    return !is_trial;
}

static int confirm(void *context) {
    (void)context;
    if (!is_trial) return 0;
    CHECK(is_good);
    if (cut()) longjmp(power, 1);
    is_trial = 0;
    kept = 2;
    if (cut()) longjmp(power, 1);
    return 0;
}

static void give_up(void *context) {
    (void)context;
    if (cut()) longjmp(power, 1);
    starts = STARTS_MAX;
}

static enum wm_fault verify(void *context, int algorithm, const uint8_t *key_id, const uint8_t *statement, size_t length,
                            const uint8_t *signature) {
    (void)context;
    CHECK(algorithm == WM_ED25519 || algorithm == WM_ES256);
    CHECK(!memcmp(statement, "\x84\x6A" "Signature1\x58\x35", 14) && key_id && length && signature);
    return (enum wm_fault)verdict;
}

static void hash_begin(void *context) {
    (void)context;
    hash = 2166136261u;
}

static void hash_add(void *context, const uint8_t *data, size_t length) {
    (void)context;
    while (length--) hash = (hash ^ *data++) * 16777619u;
}

static void hash_end(void *context, uint8_t *digest) {
    (void)context;
    for (uint32_t index = 0; index < 32; index++) digest[index] = (uint8_t)(hash >> (index % 4 * 8));
}

static void hash_of(const uint8_t *data, size_t length, uint8_t *digest) {
    hash_begin(NULL);
    hash_add(NULL, data, length);
    hash_end(NULL, digest);
}

static uint32_t ticks(void *context) {
    (void)context;
    return now_ms += 97;
}

static uint32_t time_now(void *context) {
    (void)context;
    return 1767225600;
}

static uint32_t random_word(void *context) {
    (void)context;
    return chance();
}

static void say(void *context, const char *text) {
    (void)context;
    CHECK(text);
}

static const struct wu_port port = {NULL, write_image, read_image, read_record, write_record, try_image, is_confirmed,
                                    confirm, give_up, verify, hash_begin, hash_add, hash_end, ticks, time_now,
                                    random_word, say};

/* --- a gateway in memory ---------------------------------------------------------------------------------------- */

static char list[512];
static const uint8_t *answer;
static size_t answer_left;

static int ask(void *context, const struct wu_request *request) {
    (void)context;
    if (chance() % 40 == 0) return -1;
    answer_left = 0;
    if (request->question == WU_LIST) {
        answer = (const uint8_t *)list;
        answer_left = strlen(list);
    } else if (request->question == WU_MANIFEST) {
        answer = envelope + WM_HEADROOM;
        answer_left = envelope_length;
    } else if (request->question == WU_IMAGE) {
        CHECK(request->count && request->first + request->count <= image_length);
        answer = image + request->first;
        answer_left = request->count;
    } else {
        snprintf(reported, sizeof reported, "%s", request->state);
        snprintf(reason, sizeof reason, "%s", request->reason);
    }
    return 0;
}

static int receive(void *context, uint8_t *data, size_t size) {
    (void)context;
    if (chance() % 50 == 0) return WU_LATER;
    if (chance() % 4 == 0) return WU_PENDING;
    if (!answer_left) return WU_END;
    size_t count = 1 + chance() % (chance() % 2 ? 4096 : 40);
    if (count > answer_left) count = answer_left;
    if (count > size) count = size;
    CHECK(count);
    memcpy(data, answer, count);
    answer += count;
    answer_left -= count;
    return (int)count;
}

static const struct wu_transport transport = {NULL, ask, receive};
static struct wu_update update;

static void live(uint32_t life) {
    static struct wu_settings settings;
    settings = (struct wu_settings){"pump", "1.0", "posix", 1, SLOT, 1, 60, 1};
    uint32_t labelled = life % 7 == 0 ? 9 : 2; /* an image whose manifest has another sequence */
    memset(records, 0, sizeof records);
    memset(slot, 0xFF, sizeof slot);
    reported[0] = reason[0] = 0;
    is_trial = starts = 0;
    kept = 1;
    cuts_left = (int)(life % 12);
    is_good = life % 3 != 0;
    image_length = 1 + chance() % SLOT;
    for (uint32_t index = 0; index < image_length; index++) image[index] = (uint8_t)chance();
    make_envelope(labelled, "posix");
    /* Later ones, for another board and over another version, are not ours. */
    snprintf(list, sizeof list,
             "{\"artefacts\":[{\"boards\":[\"other\"],\"kind\":\"firmware\",\"name\":\"pump\",\"sequence\":99,\"version\":\"9\"},"
             "{\"name\":\"pump\",\"kind\":\"firmware\",\"boards\":[\"a\",\"posix\"],\"sequence\":%u,\"from_versions\":[],"
             "\"version\":\"2.0\"},{\"name\":\"pump\",\"version\":\"3.0\",\"kind\":\"firmware\",\"sequence\":98,"
             "\"boards\":[\"posix\"],\"from_versions\":[\"1.5\",\"1.6\"]}]}", (unsigned)labelled);
    if (setjmp(power)) CHECK(cuts_left >= 0);
    for (;;) { /* each turn is a start */
        if (is_trial && starts >= STARTS_MAX) is_trial = 0;
        if (is_trial) starts++;
        settings.sequence = is_trial ? 2 : kept;
        settings.has_key = !(is_trial && life % 11 == 5); /* the new image was built without it */
        if (is_trial && !is_good && chance() % 2) continue; /* it crashes at once */
        CHECK(!wu_begin(&update, &settings, &port, &transport));
        int restarts = 0;
        for (uint32_t step = 0; step < STEPS && !restarts; step++) {
            restarts = wu_step(&update, step > 5 && (is_good || !is_trial)) == WU_RESTART;
            if (!strcmp(reported, "healthy") && !wu_is_busy(&update)) {
                CHECK(is_good && labelled == 2 && kept == 2 && !is_trial && settings.sequence == 2);
                return;
            }
            if (!strcmp(reported, "rolled-back") && update.tries >= WU_TRIES_MAX && !wu_is_busy(&update)) {
                CHECK(kept == 1 && !is_trial && settings.sequence == 1 && reason[0]);
                return;
            }
        }
        CHECK(restarts);
    }
}

/* --- manifests -------------------------------------------------------------------------------------------------- */

static const struct wm_place place = {"pump", "posix", "1.0", 1, SLOT, 0};

/* Open a copy of the first bytes of the envelope, with a byte changed by `mask`. */
static enum wm_fault open_changed(size_t length, size_t at, uint8_t mask) {
    static uint8_t copy[sizeof envelope];
    struct wm_manifest manifest;
    uint8_t *exact = copy + sizeof copy - WM_HEADROOM - length; /* a byte read behind the end is seen */
    memcpy(exact, envelope, WM_HEADROOM + length);
    if (mask) exact[WM_HEADROOM + at] ^= mask;
    return wm_open(&manifest, exact, length, &place, verify, NULL);
}

static void check_manifests(void) {
    image_length = 5000;
    make_envelope(2, "posix");
    CHECK(open_changed(envelope_length, 0, 0) == WM_FINE);
    for (size_t length = 0; length < envelope_length; length++) {
        enum wm_fault fault = open_changed(length, 0, 0);
        CHECK(fault == WM_TRUNCATED);
    }
    envelope[WM_HEADROOM + envelope_length] = 0;
    CHECK(open_changed(envelope_length + 1, 0, 0) == WM_MALFORMED);
    for (size_t at = 0; at < envelope_length; at++)
        for (unsigned bit = 0; bit < 8; bit++) open_changed(envelope_length, at, (uint8_t)(1u << bit)); /* nothing breaks */
    CHECK(open_changed(WM_ENVELOPE_MAX + 1, 0, 0) == WM_TOO_LARGE);
    verdict = WM_FORGED;
    CHECK(open_changed(envelope_length, 0, 0) == WM_FORGED);
    verdict = WM_UNKNOWN_KEY;
    CHECK(open_changed(envelope_length, 0, 0) == WM_UNKNOWN_KEY);
    verdict = WM_FINE;
    make_envelope(1, "posix");
    CHECK(open_changed(envelope_length, 0, 0) == WM_DOWNGRADED);
    make_envelope(2, "other");
    CHECK(open_changed(envelope_length, 0, 0) == WM_WRONG_BOARD);
    image_length = SLOT + 1;
    make_envelope(2, "posix");
    CHECK(open_changed(envelope_length, 0, 0) == WM_TOO_LARGE);
}

/* --- any bytes as answers --------------------------------------------------------------------------------------- */

static const char *const pieces[] = {
    "HTTP/1.1 200 OK\r\n", "HTTP/1.1 206 Partial Content\r\n", "HTTP/1.1 416 \r\n", "HTTP/1.1 503 \r\n", "\r\n",
    "Content-Length: 60\r\n", "Date: Mon, 30 Nov 2026 04:19:49 GMT\r\n", "Date: \r\n", "content-length:99999999999\r\n", "Connection: close\r\n", "{\"artefacts\":[", "{", "]", "}",
    "\"name\":\"pump\",", "\"kind\":\"firmware\",", "\"version\":\"2.0\",", "\"sequence\":2}", "\\", "\"", ":", ","};
static const char *piece;

static int any_open(void *context) {
    (void)context;
    return chance() % 8 ? 0 : -1;
}

static int any_send(void *context, const uint8_t *data, size_t length) {
    (void)context;
    CHECK(data && length);
    return chance() % 8 ? (int)length : (int)(chance() % 2) - 1;
}

static int any_receive(void *context, uint8_t *data, size_t size) {
    (void)context;
    CHECK(size);
    if (chance() % 16 == 0) return (int)(chance() % 2) - 1;
    if (!piece || !*piece) piece = pieces[chance() % (sizeof pieces / sizeof *pieces)];
    *data = (uint8_t)(chance() % 40 ? *piece++ : (char)chance());
    return 1;
}

static void any_close(void *context) { (void)context; }

/* --- an answer -------------------------------------------------------------------------------------------------- */

static const char *given;

static int given_open(void *context) {
    (void)context;
    return 0;
}

static int given_send(void *context, const uint8_t *data, size_t length) {
    (void)context;
    CHECK(data);
    return (int)length;
}

static int given_receive(void *context, uint8_t *data, size_t size) {
    (void)context;
    if (!*given) return -1;
    size_t count = strlen(given) < size ? strlen(given) : size;
    memcpy(data, given, count);
    given += count;
    return (int)count;
}

/* Return the time after an answer with this field; `ticks` runs on while it is read. */
static uint32_t time_of(const char *date) {
    static const struct wh_port http_port = {NULL, given_open, given_send, given_receive, any_close, ticks, say};
    static const struct wh_settings http_settings = {"gateway", "pump7", NULL};
    static struct wh_client client;
    const struct wu_request request = {.question = WU_LIST};
    struct wu_transport http;
    char text[128];
    uint8_t body[8];
    snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\n%s\r\nContent-Length: 2\r\n\r\n{}", date);
    given = text;
    CHECK(!wh_begin(&client, &http, &http_settings, &http_port) && !http.ask(&client, &request));
    CHECK(http.receive(&client, body, sizeof body) == 2 && !memcmp(body, "{}", 2));
    CHECK(http.receive(&client, body, sizeof body) == WU_END);
    return wh_time_s(&client);
}

static void check_time(void) {
    CHECK(time_of("date: Mon, 30 Nov 2026 04:19:49 GMT") - 1796012389u <= 20);
    CHECK(time_of("Date: Thu, 29 Feb 2024 12:00:00 GMT") - 1709208000u <= 20);
    CHECK(time_of("Date: Sat, 01 Mar 2025 00:00:00 GMT") - 1740787200u <= 20);
    CHECK(time_of("Date: Fri, 31 Dec 2100 23:59:59 GMT") - 4133980799u <= 20);
    CHECK(time_of("Date: Thu, 01 Jan 1970 00:10:00 GMT") == 0); /* a clock that was never set */
    CHECK(time_of("Date: yesterday") == 0);
    CHECK(time_of("Date: Mon, 30 Foo 2026 04:19:49 GMT") == 0);
}

static void check_any_answers(void) {
    static const struct wh_port http_port = {NULL, any_open, any_send, any_receive, any_close, ticks, say};
    static const struct wh_settings http_settings = {"gateway", "pump7", "secret"};
    static const struct wu_settings settings = {"pump", "1.0", "posix", 1, SLOT, 1, 60, 1};
    static struct wh_client client;
    struct wu_transport http;
    verdict = WM_FORGED;
    cuts_left = is_trial = 0;
    for (uint32_t round = 0; round < FUZZ_ROUNDS; round++) {
        memset(records, 0, sizeof records);
        CHECK(!wh_begin(&client, &http, &http_settings, &http_port));
        CHECK(!wu_begin(&update, &settings, &port, &http));
        for (uint32_t step = 0; step < 2000; step++) CHECK(wu_step(&update, 1) == WU_RUNS);
    }
}

int main(void) {
    check_manifests();
    for (uint32_t life = 0; life < LIVES; life++) live(life);
    check_time();
    check_any_answers();
    printf("ok\n");
    return 0;
}
