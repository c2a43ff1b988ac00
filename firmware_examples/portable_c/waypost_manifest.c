/* See waypost_manifest.h. Every length is checked against the end before a byte is read. */
#include "waypost_manifest.h"

#include <string.h>

enum { UNSIGNED = 0, BYTES = 2, TEXT = 3, ARRAY = 4, MAP = 5 };
enum { PROTECTED_AT = 2, PROTECTED_BYTES = 53, PAYLOAD_AT = PROTECTED_AT + 2 + PROTECTED_BYTES + 1 };
enum { KEY_FORMAT = 1, KEY_KIND, KEY_NAME, KEY_VERSION, KEY_SEQUENCE, KEY_BOARDS, KEY_FROM, KEY_SIZE, KEY_SHA256,
       KEY_NOT_BEFORE };

struct cbor {
    const uint8_t *at, *end;
    enum wm_fault fault;
};

static void fail(struct cbor *cbor, enum wm_fault fault) {
    if (!cbor->fault) cbor->fault = fault;
    cbor->at = cbor->end;
}

/* Read the head of an item; it has to be of this major type, and in the shortest form. */
static uint64_t head(struct cbor *cbor, unsigned major) {
    if (cbor->at >= cbor->end) {
        fail(cbor, WM_TRUNCATED);
        return 0;
    }
    uint8_t first = *cbor->at++;
    unsigned form = first & 31;
    if (first >> 5 != major || form > 27) {
        fail(cbor, WM_MALFORMED);
        return 0;
    }
    if (form < 24) return form;
    size_t width = (size_t)1 << (form - 24);
    if ((size_t)(cbor->end - cbor->at) < width) {
        fail(cbor, WM_TRUNCATED);
        return 0;
    }
    uint64_t value = 0, least = width == 1 ? 24 : (uint64_t)1 << (4 * width);
    for (size_t index = 0; index < width; index++) value = value << 8 | *cbor->at++;
    if (value < least) fail(cbor, WM_MALFORMED);
    return value;
}

/* Read a string; NULL if there is none, or it is not of this many bytes at most. */
static const uint8_t *string(struct cbor *cbor, unsigned major, size_t max, size_t *length) {
    uint64_t bytes = head(cbor, major);
    *length = 0;
    if (cbor->fault) return NULL;
    if (bytes > (uint64_t)(cbor->end - cbor->at)) fail(cbor, WM_TRUNCATED);
    else if (bytes > max) fail(cbor, WM_MALFORMED);
    if (cbor->fault) return NULL;
    const uint8_t *at = cbor->at;
    cbor->at += bytes;
    *length = (size_t)bytes;
    return at;
}

static int text_is(struct cbor *cbor, const char *word) {
    size_t length;
    const uint8_t *at = string(cbor, TEXT, 64, &length);
    return at && length == strlen(word) && !memcmp(at, word, length);
}

/* Return whether an array of texts has this word; `empty` is the answer for none. */
static int texts_have(struct cbor *cbor, const char *word) {
    int found = 0;
    uint64_t count = head(cbor, ARRAY);
    if (!cbor->fault && !count) fail(cbor, WM_MALFORMED);
    for (uint64_t index = 0; index < count && !cbor->fault; index++) found |= text_is(cbor, word);
    return found;
}

int wm_is_version(const char *text, size_t length) {
    if (!length || length > WM_VERSION_MAX) return 0;
    for (size_t index = 0; index < length; index++) {
        char c = text[index];
        int letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && (!index || (c != '.' && c != '+' && c != '_' && c != '-'))) return 0;
    }
    return 1;
}

static void read_version(struct cbor *cbor, struct wm_manifest *manifest) {
    size_t length;
    const uint8_t *at = string(cbor, TEXT, WM_VERSION_MAX, &length);
    if (!at || !wm_is_version((const char *)at, length)) {
        fail(cbor, WM_MALFORMED);
        return;
    }
    memcpy(manifest->version, at, length);
    manifest->version[length] = 0;
}

/* What was read so far; the order of refusals does not depend on the order of the fields. */
struct seen {
    unsigned fields;
    int kind, name, board, from, later;
};

static void read_field(struct cbor *cbor, uint64_t key, struct wm_manifest *manifest, const struct wm_place *place,
                       struct seen *seen) {
    uint64_t number;
    size_t length;
    const uint8_t *at;
    switch (key) {
    case KEY_FORMAT:
        if (head(cbor, UNSIGNED) != 1) fail(cbor, WM_UNSUPPORTED);
        break;
    case KEY_KIND: seen->kind = text_is(cbor, "firmware"); break;
    case KEY_NAME: seen->name = text_is(cbor, place->name); break;
    case KEY_VERSION: read_version(cbor, manifest); break;
    case KEY_SEQUENCE: manifest->sequence = head(cbor, UNSIGNED); break;
    case KEY_BOARDS: seen->board = texts_have(cbor, place->board); break;
    case KEY_FROM: seen->from = texts_have(cbor, place->version); break;
    case KEY_SIZE:
        number = head(cbor, UNSIGNED);
        if (!cbor->fault && !number) fail(cbor, WM_MALFORMED);
        if (number > place->slot_bytes) fail(cbor, WM_TOO_LARGE);
        manifest->size = (uint32_t)number;
        break;
    case KEY_SHA256:
        at = string(cbor, BYTES, WM_DIGEST_BYTES, &length);
        if (at && length == WM_DIGEST_BYTES) memcpy(manifest->sha256, at, length);
        else fail(cbor, WM_MALFORMED);
        break;
    case KEY_NOT_BEFORE:
        number = head(cbor, UNSIGNED);
        seen->later = place->time_s && number > place->time_s;
        break;
    default: fail(cbor, WM_MALFORMED);
    }
}

static enum wm_fault read_payload(struct wm_manifest *manifest, const uint8_t *at, size_t length,
                                  const struct wm_place *place) {
    struct cbor cbor = {at, at + length, WM_FINE};
    struct seen seen = {0, 0, 0, 0, 1, 0};
    uint64_t count = head(&cbor, MAP), before = 0;
    memset(manifest, 0, sizeof *manifest);
    for (uint64_t index = 0; index < count && !cbor.fault; index++) {
        uint64_t key = head(&cbor, UNSIGNED);
        if (cbor.fault || key <= before) return cbor.fault ? cbor.fault : WM_MALFORMED;
        before = key;
        read_field(&cbor, key, manifest, place, &seen);
        if (key < 16) seen.fields |= 1u << key;
    }
    if (cbor.fault) return cbor.fault;
    unsigned needed = ((1u << (KEY_NOT_BEFORE + 1)) - 2) & ~(1u << KEY_FROM | 1u << KEY_NOT_BEFORE);
    if (cbor.at != cbor.end || (seen.fields & needed) != needed || !seen.kind) return WM_MALFORMED;
    if (!seen.name) return WM_FORGED; /* another artefact under the name of ours */
    if (seen.later) return WM_NOT_YET_VALID;
    if (manifest->sequence <= place->sequence) return WM_DOWNGRADED;
    if (!seen.board) return WM_WRONG_BOARD;
    return seen.from ? WM_FINE : WM_WRONG_FROM_VERSION;
}

/* Return the fault of the protected header: the algorithm, the type of an artefact, and the identifier of a key. */
static enum wm_fault check_header(const uint8_t *header, int *algorithm) {
    static const char type[] = "\x03\x78\x25" "application/vnd.waypost.artefact+cbor" "\x04\x48";
    if (header[0] != 0xA3 || header[1] != 1 || header[2] >> 5 != 1 || (header[2] & 31) > 23
        || memcmp(header + 3, type, sizeof type - 1))
        return WM_MALFORMED;
    *algorithm = -1 - (header[2] & 31);
    return *algorithm == WM_ED25519 || *algorithm == WM_ES256 ? WM_FINE : WM_UNSUPPORTED;
}

enum wm_fault wm_open(struct wm_manifest *manifest, uint8_t *buffer, size_t length, const struct wm_place *place,
                      wm_verify verify, void *context) {
    static const uint8_t start[] = {0xD2, 0x84, 0x58, PROTECTED_BYTES};
    static const char statement_start[] = "\x84\x6A" "Signature1";
    uint8_t *envelope = buffer + WM_HEADROOM;
    size_t payload_length, signature_length;
    int algorithm;
    if (length > WM_ENVELOPE_MAX) return WM_TOO_LARGE;
    if (memcmp(envelope, start, length < sizeof start ? length : sizeof start)) return WM_MALFORMED;
    if (length <= PAYLOAD_AT) return WM_TRUNCATED;
    const uint8_t *protected_header = envelope + sizeof start;
    enum wm_fault fault = check_header(protected_header, &algorithm);
    if (fault) return fault;
    if (envelope[PAYLOAD_AT - 1] != 0xA0) return WM_MALFORMED; /* the unprotected header is empty */
    struct cbor cbor = {envelope + PAYLOAD_AT, envelope + length, WM_FINE};
    const uint8_t *payload = string(&cbor, BYTES, WM_ENVELOPE_MAX, &payload_length);
    const uint8_t *payload_end = cbor.at;
    const uint8_t *signature = string(&cbor, BYTES, WM_SIGNATURE_BYTES, &signature_length);
    if (cbor.fault) return cbor.fault;
    if (cbor.at != cbor.end) return WM_MALFORMED;
    if (signature_length != WM_SIGNATURE_BYTES) return WM_FORGED;
    /* What is signed has the same bytes, behind another start and with an empty string for the empty map. */
    envelope[PAYLOAD_AT - 1] = 0x40;
    memcpy(buffer, statement_start, sizeof statement_start - 1);
    fault = verify(context, algorithm, protected_header + PROTECTED_BYTES - WM_KEY_ID_BYTES, buffer,
                   (size_t)(payload_end - buffer), signature);
    return fault ? fault : read_payload(manifest, payload, payload_length, place);
}

const char *wm_reason(enum wm_fault fault) {
    static const char *const reasons[WM_FAULTS] = {
        "", "forged", "truncated", "too-large", "malformed", "unknown-key", "unsupported-version", "not-yet-valid",
        "downgraded", "wrong-board", "wrong-from-version", "not-healthy", "restarted", "wrong-sequence",
        "cannot-install", "no-key"};
    return fault < WM_FAULTS ? reasons[fault] : "";
}
