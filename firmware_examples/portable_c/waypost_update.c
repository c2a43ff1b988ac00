/* See waypost_update.h, and README.md for the states. */
#include "waypost_update.h"

#include <string.h>

enum { NONE, DOWNLOADING, VERIFIED, INSTALLED, STARTED, HEALTHY, ROLLED_BACK };
enum { RESTING, LISTING, OPENING, LOADING, HASHING, REPORTING };
enum { FORMAT = 1, RETRY_MS_MIN = 500, RETRY_MS_MAX = 60000, DAY_S = 86400, LIST_DEPTH_MAX = 16, ARTEFACT_DEPTH = 3 };
/* Places in a record, little endian. */
enum { AT_CRC = 0, AT_COUNT = 4, AT_FORMAT = 8, AT_STATE = 9, AT_REPORTED = 10, AT_FAULT = 11, AT_TRIES = 12,
       AT_DONE = 16, AT_SIZE = 20, AT_SEQUENCE = 24, AT_ENVELOPE = 32, AT_SHA256 = 40, AT_OWN = 72, AT_VERSION = 80,
       RECORD_USED = AT_VERSION + WM_VERSION_MAX };

static void say(struct wu_update *update, const char *text) { update->port->log(update->port->context, text); }

/* --- the record ------------------------------------------------------------------------------------------------- */

static void put_u32(uint8_t *at, uint32_t value) {
    for (unsigned index = 0; index < 4; index++) at[index] = (uint8_t)(value >> 8 * index);
}

static uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void put_u64(uint8_t *at, uint64_t value) {
    put_u32(at, (uint32_t)value);
    put_u32(at + 4, (uint32_t)(value >> 32));
}

static uint64_t get_u64(const uint8_t *at) { return get_u32(at) | (uint64_t)get_u32(at + 4) << 32; }

static uint32_t crc32_of(const uint8_t *data, size_t length) {
    uint32_t crc = 0xFFFFFFFFu;
    while (length--) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

/* Store the state. A torn record fails its checksum, and the one before, in the other place, counts. */
static int save(struct wu_update *update) {
    uint8_t record[WU_RECORD_BYTES] = {0};
    const struct wm_manifest *target = &update->target;
    if (update->storage_failed) return -1;
    put_u32(record + AT_COUNT, ++update->count);
    record[AT_FORMAT] = FORMAT;
    record[AT_STATE] = update->state;
    record[AT_REPORTED] = update->reported;
    record[AT_FAULT] = update->fault;
    record[AT_TRIES] = update->tries;
    put_u32(record + AT_DONE, update->done);
    put_u32(record + AT_SIZE, target->size);
    put_u64(record + AT_SEQUENCE, target->sequence);
    put_u64(record + AT_OWN, update->settings->sequence);
    memcpy(record + AT_ENVELOPE, update->envelope_id, sizeof update->envelope_id);
    memcpy(record + AT_SHA256, target->sha256, WM_DIGEST_BYTES);
    memcpy(record + AT_VERSION, target->version, WM_VERSION_MAX);
    put_u32(record, crc32_of(record + AT_COUNT, RECORD_USED - AT_COUNT));
    if (!update->port->write_record(update->port->context, update->count % 2, record)) return 0;
    say(update, "cannot store the state of the update; check the storage. No more updates until a restart");
    update->storage_failed = 1;
    return -1;
}

static void load(struct wu_update *update) {
    uint8_t record[WU_RECORD_BYTES];
    struct wm_manifest *target = &update->target;
    for (uint32_t index = 0; index < 2; index++) {
        if (update->port->read_record(update->port->context, index, record) || record[AT_FORMAT] != FORMAT
            || crc32_of(record + AT_COUNT, RECORD_USED - AT_COUNT) != get_u32(record))
            continue;
        uint32_t count = get_u32(record + AT_COUNT);
        if (update->count && (int32_t)(count - update->count) < 0) continue;
        update->count = count;
        update->state = record[AT_STATE];
        update->reported = record[AT_REPORTED];
        update->fault = record[AT_FAULT];
        update->tries = record[AT_TRIES];
        update->done = get_u32(record + AT_DONE);
        target->size = get_u32(record + AT_SIZE);
        target->sequence = get_u64(record + AT_SEQUENCE);
        memcpy(update->envelope_id, record + AT_ENVELOPE, sizeof update->envelope_id);
        memcpy(target->sha256, record + AT_SHA256, WM_DIGEST_BYTES);
        memcpy(target->version, record + AT_VERSION, WM_VERSION_MAX);
        /* What another firmware has refused, this one may take. */
        if (update->state == ROLLED_BACK && get_u64(record + AT_OWN) != update->settings->sequence) update->tries = 0;
    }
}

/* --- time ------------------------------------------------------------------------------------------------------- */

static uint32_t now_ms(struct wu_update *update) { return update->port->ticks_ms(update->port->context); }

/* Half of a time to all of it, so that a thousand devices do not come at once. */
static uint32_t some_of(struct wu_update *update, uint32_t ms) {
    return ms / 2 + update->port->random(update->port->context) % (ms / 2 + 1);
}

static void rest(struct wu_update *update, uint32_t ms) {
    update->doing = RESTING;
    update->rest_until_ms = now_ms(update) + ms;
}

static void try_later(struct wu_update *update) {
    rest(update, some_of(update, update->retry_ms));
    update->retry_ms = update->retry_ms < RETRY_MS_MAX / 2 ? update->retry_ms * 2 : RETRY_MS_MAX;
}

static void succeeded(struct wu_update *update) {
    update->retry_ms = RETRY_MS_MIN;
    rest(update, 0);
}

/* Look for an image no sooner than after the time between two looks. */
static void look_later(struct wu_update *update) {
    succeeded(update);
    update->has_looked = 1;
    update->look_at_ms = now_ms(update) + some_of(update, update->settings->ask_s * 1000u);
}

static void ask(struct wu_update *update, uint8_t doing, const struct wu_request *request) {
    update->doing = doing;
    if (update->transport->ask(update->transport->context, request)) try_later(update);
}

/* End a try: the device stays with the image that runs. It tries the same manifest again, a few times, unless that
 * cannot help. */
static void end_try(struct wu_update *update, enum wm_fault fault) {
    int helps = update->state == DOWNLOADING || fault == WM_NOT_HEALTHY || fault == WM_RESTARTED
                || fault == WM_CANNOT_INSTALL;
    update->state = ROLLED_BACK;
    update->reported = NONE;
    update->fault = (uint8_t)fault;
    update->tries = (uint8_t)(helps ? update->tries + 1u : WU_TRIES_MAX);
    update->done = 0;
    say(update, "the new image is refused, or was rolled back:");
    say(update, wm_reason(fault));
    save(update);
    look_later(update);
}

/* --- the list of the gateway ------------------------------------------------------------------------------------ */

static int is_key(const struct wu_update *update, const char *word) { return !strcmp(update->key, word); }

static void end_string(struct wu_update *update) {
    int fits = update->word_length < sizeof update->word;
    update->word[fits ? update->word_length : 0] = 0;
    if (update->depth == ARTEFACT_DEPTH + 1) { /* of a list of boards or versions */
        if (is_key(update, "boards")) {
            update->has_boards = 1;
            if (!strcmp(update->word, update->settings->board)) update->is_for_board = 1;
        } else if (is_key(update, "from_versions")) {
            update->has_from = 1;
            if (!strcmp(update->word, update->settings->version)) update->is_over_us = 1;
        }
    } else if (update->depth != ARTEFACT_DEPTH) {
        return;
    } else if (!update->is_value) {
        memset(update->key, 0, sizeof update->key);
        if (fits && update->word_length < sizeof update->key) memcpy(update->key, update->word, update->word_length);
    } else if (is_key(update, "name")) {
        update->is_ours = !strcmp(update->word, update->settings->name);
    } else if (is_key(update, "kind")) {
        update->is_firmware = !strcmp(update->word, "firmware");
    } else if (is_key(update, "version") && fits && wm_is_version(update->word, update->word_length)) {
        memcpy(update->version, update->word, update->word_length + 1u);
    }
}

static void begin_artefact(struct wu_update *update) {
    update->is_ours = update->is_firmware = 0;
    update->has_boards = update->is_for_board = update->has_from = update->is_over_us = 0;
    update->number = 0;
    update->version[0] = update->key[0] = 0;
}

/* Choose an artefact if it is the latest of ours so far. */
static void end_artefact(struct wu_update *update) {
    if (!update->is_ours || !update->is_firmware || !update->version[0]) return;
    if ((update->has_boards && !update->is_for_board) || (update->has_from && !update->is_over_us)) return; /* for others */
    if (update->number <= update->settings->sequence || update->number <= update->best_sequence) return;
    update->best_sequence = update->number;
    memcpy(update->best, update->version, sizeof update->best);
}

static void scan_string(struct wu_update *update, char c) {
    if (c == '"' && !update->escaped) {
        update->in_string = 0;
        end_string(update);
        return;
    }
    if (update->escaped || c == '\\')
        update->word_length = sizeof update->word; /* no word that we look for has an escape */
    else if (update->word_length < sizeof update->word)
        update->word[update->word_length++] = c;
    update->escaped = (uint8_t)(c == '\\' && !update->escaped);
}

/* Take a byte of the list: {"artefacts": [{"name": …, "version": …, "kind": …, "sequence": …}, …]}. */
static void scan(struct wu_update *update, char c) {
    if (update->in_string) {
        scan_string(update, c);
    } else if (c == '"') {
        update->in_string = 1;
        update->word_length = update->escaped = 0;
    } else if (c == '{' || c == '[') {
        if (++update->depth > LIST_DEPTH_MAX) update->is_broken = 1;
        if (update->depth == ARTEFACT_DEPTH) begin_artefact(update);
        if (update->depth <= ARTEFACT_DEPTH) update->is_value = 0;
    } else if (c == '}' || c == ']') {
        if (update->depth == ARTEFACT_DEPTH) end_artefact(update);
        if (!update->depth) update->is_broken = 1;
        else update->depth--;
    } else if (update->depth == ARTEFACT_DEPTH && c == ':') {
        update->is_value = 1;
    } else if (update->depth == ARTEFACT_DEPTH && c == ',') {
        update->is_value = 0;
    } else if (c >= '0' && c <= '9' && update->depth == ARTEFACT_DEPTH && update->is_value && is_key(update, "sequence")
               && update->number < UINT64_MAX / 16) {
        update->number = update->number * 10 + (uint64_t)(c - '0');
    }
}

static void begin_look(struct wu_update *update) {
    const struct wu_request request = {.question = WU_LIST};
    update->depth = update->in_string = update->is_broken = 0;
    update->best_sequence = 0;
    ask(update, LISTING, &request);
}

static void end_look(struct wu_update *update) {
    if (update->is_broken || update->depth || update->in_string) {
        say(update, "the list of images cannot be read");
        try_later(update);
    } else if (!update->best_sequence) {
        look_later(update);
    } else {
        const struct wu_request request = {.question = WU_MANIFEST, .name = update->settings->name,
                                           .version = update->best};
        update->have = 0;
        ask(update, OPENING, &request);
    }
}

/* --- manifest and image ----------------------------------------------------------------------------------------- */

static void hash_of(struct wu_update *update, const uint8_t *data, size_t length, uint8_t *digest) {
    const struct wu_port *port = update->port;
    port->hash_begin(port->context);
    port->hash_add(port->context, data, length);
    port->hash_end(port->context, digest);
}

static void end_manifest(struct wu_update *update) {
    const struct wu_port *port = update->port;
    const struct wu_settings *settings = update->settings;
    const struct wm_place place = {settings->name, settings->board, settings->version, settings->sequence,
                                   settings->slot_bytes, port->time_s(port->context)};
    struct wm_manifest found = {0};
    uint8_t digest[WM_DIGEST_BYTES];
    /* One that is too large is known by its start. */
    hash_of(update, update->block + WM_HEADROOM, update->have < WM_ENVELOPE_MAX ? update->have : WM_ENVELOPE_MAX, digest);
    if (!memcmp(digest, update->envelope_id, sizeof update->envelope_id)) {
        if (update->state == ROLLED_BACK && update->tries >= WU_TRIES_MAX) { /* the same as was refused */
            look_later(update);
            return;
        }
    } else {
        update->tries = 0;
    }
    enum wm_fault fault = wm_open(&found, update->block, update->have, &place, port->verify, port->context);
    if (!fault && strcmp(found.version, update->best)) fault = WM_FORGED; /* the manifest of another version */
    if (fault == WM_NOT_YET_VALID) {
        say(update, "a new image is not valid yet");
        look_later(update);
        return;
    }
    memcpy(update->envelope_id, digest, sizeof update->envelope_id);
    if (fault) memset(&found, 0, sizeof found);
    update->target = found;
    memcpy(update->target.version, update->best, sizeof update->target.version);
    update->done = 0;
    if (fault) {
        end_try(update, fault);
        return;
    }
    say(update, "a new image: downloading");
    update->state = DOWNLOADING;
    update->reported = NONE;
    update->fault = WM_FINE;
    save(update);
    succeeded(update);
}

static void begin_part(struct wu_update *update) {
    uint32_t left = update->target.size - update->done, count = left < WU_PART_BYTES ? left : WU_PART_BYTES;
    const struct wu_request request = {.question = WU_IMAGE, .name = update->settings->name,
                                       .version = update->target.version, .first = update->done, .count = count,
                                       .sha256 = update->target.sha256};
    update->have = 0;
    update->part_end = update->done + count;
    ask(update, LOADING, &request);
}

/* Take bytes of the image; write each full block, and the rest at the end of the part. */
static void take_image(struct wu_update *update, size_t length) {
    const struct wu_port *port = update->port;
    update->have += (uint32_t)length;
    uint32_t at = (update->done + update->have - 1) / WU_BLOCK_BYTES * WU_BLOCK_BYTES; /* of the block in memory */
    uint32_t end = update->done + update->have, in_block = end - at;
    if (in_block < WU_BLOCK_BYTES && end < update->part_end) return;
    if (port->write_image(port->context, at, update->block, in_block)) {
        say(update, "cannot write the new image; check the storage");
        end_try(update, WM_CANNOT_INSTALL);
        return;
    }
}

/* The answer for a part is complete. */
static void end_part(struct wu_update *update) {
    uint32_t end = update->done + update->have;
    if (end < update->part_end) { /* the gateway's image is shorter than its manifest says */
        end_try(update, WM_TRUNCATED);
        return;
    }
    update->done = end;
    save(update);
    succeeded(update);
}

/* Return the free bytes of the block in memory that the next bytes of the image go to, and where they begin. */
static uint8_t *image_room(struct wu_update *update, size_t *size) {
    uint32_t used = (update->done + update->have) % WU_BLOCK_BYTES, left = update->part_end - update->done - update->have;
    *size = WU_BLOCK_BYTES - used < left ? WU_BLOCK_BYTES - used : left;
    return update->block + used;
}

static void begin_hash(struct wu_update *update) {
    update->doing = HASHING;
    update->have = 0;
    update->port->hash_begin(update->port->context);
}

/* Read the stored image once more, a block at a time: so its storage is verified too. */
static void hash_block(struct wu_update *update) {
    const struct wu_port *port = update->port;
    uint32_t left = update->target.size - update->have, count = left < WU_BLOCK_BYTES ? left : WU_BLOCK_BYTES;
    if (port->read_image(port->context, update->have, update->block, count)) {
        end_try(update, WM_CANNOT_INSTALL);
        return;
    }
    port->hash_add(port->context, update->block, count);
    update->have += count;
    if (update->have < update->target.size) return;
    uint8_t digest[WM_DIGEST_BYTES];
    port->hash_end(port->context, digest);
    if (memcmp(digest, update->target.sha256, sizeof digest)) {
        end_try(update, WM_FORGED);
        return;
    }
    say(update, "the new image is verified");
    update->state = VERIFIED;
    save(update);
    succeeded(update);
}

/* --- reports ---------------------------------------------------------------------------------------------------- */

static int has_to_report(const struct wu_update *update) {
    return update->state != update->reported && update->state != NONE && update->state != STARTED;
}

static void begin_report(struct wu_update *update) {
    static const char *const names[] = {"", "downloading", "verified", "installed", "", "healthy", "rolled-back"};
    const struct wu_request request = {.question = WU_REPORT, .name = update->settings->name,
                                       .version = update->target.version, .state = names[update->state],
                                       .reason = wm_reason((enum wm_fault)update->fault),
                                       .sha256 = update->target.size ? update->target.sha256 : NULL};
    ask(update, REPORTING, &request);
}

static void end_report(struct wu_update *update) {
    update->reported = update->state;
    save(update);
    succeeded(update);
}

/* --- the machine ------------------------------------------------------------------------------------------------ */

/* The answer is complete. */
static void end_answer(struct wu_update *update) {
    switch (update->doing) {
    case LISTING: end_look(update); break;
    case OPENING: end_manifest(update); break;
    case REPORTING: end_report(update); break;
    default: end_part(update);
    }
}

/* What we asked for is not there any more. */
static void answer_is_gone(struct wu_update *update) {
    if (update->doing == REPORTING) { /* nobody waits for it */
        end_report(update);
        return;
    }
    if (update->doing == LOADING) {
        say(update, "the new image is not offered any more");
        update->state = NONE;
        save(update);
        update->has_looked = 0;
        try_later(update);
        return;
    }
    look_later(update);
}

static void receive(struct wu_update *update) {
    size_t size = sizeof update->block - WM_HEADROOM - update->have;
    uint8_t *room = update->block + WM_HEADROOM + update->have;
    int is_whole = update->doing == LOADING && update->done + update->have == update->part_end;
    if (update->doing == LOADING && !is_whole) room = image_room(update, &size);
    if (update->doing == LISTING || update->doing == REPORTING || is_whole) {
        room = update->block;
        size = sizeof update->block;
    }
    int got = update->transport->receive(update->transport->context, room, size);
    if (got == WU_END) end_answer(update);
    else if (got == WU_GONE) answer_is_gone(update);
    else if (got < 0) try_later(update);
    else if (is_whole && got) try_later(update); /* more than we asked for */
    else if (update->doing == LISTING)
        for (int index = 0; index < got; index++) scan(update, (char)room[index]);
    else if (update->doing == LOADING && got) take_image(update, (size_t)got);
    else if (update->doing == OPENING) {
        update->have += (uint32_t)got;
        if (update->have > WM_ENVELOPE_MAX) end_manifest(update); /* refused as too large */
    }
}

/* Begin what the state needs. */
static enum wu_status begin_next(struct wu_update *update) {
    uint32_t now = now_ms(update);
    if (has_to_report(update)) {
        begin_report(update);
    } else if (update->state == DOWNLOADING) {
        if (update->done < update->target.size) begin_part(update);
        else begin_hash(update);
    } else if (update->state == VERIFIED) {
        update->state = INSTALLED;
        save(update);
    } else if (update->state == INSTALLED) {
        if (update->port->try_image(update->port->context, update->target.size)) {
            end_try(update, WM_CANNOT_INSTALL);
            return WU_RUNS;
        }
        update->state = STARTED; /* behind the mark of the boot loader: a reset in between only repeats the mark */
        save(update);
        say(update, "starting the new image");
        return WU_RESTART;
    } else if (!update->has_looked || (int32_t)(now - update->look_at_ms) >= 0) {
        begin_look(update);
    }
    return WU_RUNS;
}

/* Go back to the image before, which reports the reason. */
static enum wu_status go_back(struct wu_update *update, enum wm_fault fault) {
    say(update, "going back to the image before");
    if (update->state == STARTED) {
        update->fault = (uint8_t)fault;
        save(update);
    }
    update->port->give_up(update->port->context);
    return WU_RESTART;
}

/* Keep the running image once it has delivered, or go back. */
static enum wu_status try_out(struct wu_update *update, int delivered) {
    if (!update->settings->has_key) return go_back(update, WM_NO_KEY); /* it could never be updated again */
    if (update->is_mislabelled) return go_back(update, WM_WRONG_SEQUENCE);
    if (!delivered) {
        uint32_t tried_ms = now_ms(update) - update->began_ms;
        return tried_ms < update->settings->trial_s * 1000u ? WU_RUNS : go_back(update, WM_NOT_HEALTHY);
    }
    if (update->port->confirm(update->port->context)) return go_back(update, WM_CANNOT_INSTALL);
    say(update, "the new image is healthy");
    update->is_on_trial = 0;
    if (update->state == STARTED) {
        update->state = HEALTHY;
        save(update);
    }
    return WU_RUNS;
}

/* Find out what became of an image that was installed before this start. */
static void judge_start(struct wu_update *update) {
    uint64_t target = update->target.sequence, ours = update->settings->sequence;
    if (update->state < DOWNLOADING || update->state > STARTED) return;
    if (update->state < INSTALLED || (update->state == INSTALLED && target != ours && !update->is_on_trial)) {
        if (target <= ours) update->state = NONE; /* a newer image was installed by cable */
    } else if (update->is_on_trial) {
        update->is_mislabelled = target != ours; /* kept, it would be offered again and again */
        update->state = STARTED;
        update->fault = WM_FINE;
        save(update);
    } else if (target == ours) {
        update->state = HEALTHY; /* a reset between the confirmation and its record */
        save(update);
    } else {
        update->port->confirm(update->port->context); /* also where the boot loader could not record the end of the trial */
        end_try(update, update->fault ? (enum wm_fault)update->fault : WM_RESTARTED);
    }
}

int wu_begin(struct wu_update *update, const struct wu_settings *settings, const struct wu_port *port,
             const struct wu_transport *transport) {
    size_t name = strlen(settings->name);
    if (!name || name > WU_NAME_MAX || !wm_is_version(settings->name, name) || !settings->board[0]) return -1;
    if (!settings->ask_s || settings->ask_s > DAY_S || !settings->trial_s || settings->trial_s > DAY_S) return -1;
    if (!wm_is_version(settings->version, strlen(settings->version)) || !settings->slot_bytes) return -1;
    memset(update, 0, sizeof *update);
    update->port = port;
    update->transport = transport;
    update->settings = settings;
    update->retry_ms = RETRY_MS_MIN;
    update->began_ms = port->ticks_ms(port->context);
    update->is_on_trial = !port->is_confirmed(port->context);
    load(update);
    rest(update, 0);
    judge_start(update);
    return 0;
}

enum wu_status wu_step(struct wu_update *update, int delivered) {
    if (update->is_on_trial) return try_out(update, delivered);
    if (!update->transport || update->storage_failed || (!delivered && update->doing == RESTING)) return WU_RUNS;
    if (update->doing == HASHING) hash_block(update);
    else if (update->doing != RESTING) receive(update);
    else if ((int32_t)(now_ms(update) - update->rest_until_ms) >= 0) return begin_next(update);
    return WU_RUNS;
}

int wu_is_busy(const struct wu_update *update) { return update->doing != RESTING; }
