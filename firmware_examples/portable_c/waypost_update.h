/*
 * Update of a device by itself: it looks for a new image, verifies, installs and tries it, and goes back if it fails.
 *
 * As waypost_device.h: no allocation, no threads, no operating system. A board gives the functions of `struct wu_port`,
 * and a way to its gateway as `struct wu_transport` (waypost_http.h is one). Call `wu_begin` once, then `wu_step` after
 * each `wp_step`. README.md has the states and what a power cut does in each.
 */
#ifndef WAYPOST_UPDATE_H
#define WAYPOST_UPDATE_H

#include "waypost_manifest.h"

#define WU_BLOCK_BYTES 4096u  /* bytes that are written at a time: a sector of NOR flash */
#define WU_PART_BYTES 32768u  /* bytes of one request, and the most that a reset makes it fetch again */
#define WU_RECORD_BYTES 256u  /* state of the update */
#define WU_TRIES_MAX 3u       /* trials of one image; then it is refused until another manifest comes */
#define WU_NAME_MAX 64u

enum wu_question { WU_LIST, WU_MANIFEST, WU_IMAGE, WU_REPORT };

struct wu_request {
    enum wu_question question;
    const char *name, *version;          /* of the artefact; not for the list */
    uint32_t first, count;               /* bytes of the image */
    const uint8_t *sha256;               /* of the image; NULL in a report about a manifest that was refused */
    const char *state, *reason;          /* of a report */
};

/* Results of `receive`, besides a number of bytes. */
enum { WU_PENDING = 0, WU_END = -1, WU_GONE = -2, WU_LATER = -3 };

/* One request at a time, to the gateway. Every function returns at once. */
struct wu_transport {
    void *context;
    int (*ask)(void *context, const struct wu_request *request);     /* begin: 0, or -1. A request before it ends */
    /* Bytes of the answer; WU_END: it is complete; WU_GONE: there is no such artefact (any more); WU_LATER: try again */
    int (*receive)(void *context, uint8_t *data, size_t size);
};

/* What a board provides. An image is written to the slot that does not run. */
struct wu_port {
    void *context;
    int (*write_image)(void *context, uint32_t at, const uint8_t *data, size_t length); /* 0, or -1 */
    int (*read_image)(void *context, uint32_t at, uint8_t *data, size_t length);
    /* Two records of WU_RECORD_BYTES, which are written in turn; they survive a change of the image. What was written of the
     * image before is stored once `write_record` returns. */
    int (*read_record)(void *context, uint32_t index, uint8_t *data);
    int (*write_record)(void *context, uint32_t index, const uint8_t *data);
    /* Boot loader: it starts the other slot for a trial, and goes back after a few starts without `confirm`. */
    int (*try_image)(void *context, uint32_t size);  /* the next start is a trial of the written image: 0, or -1 */
    int (*is_confirmed)(void *context);              /* 0 while the running image is on trial */
    int (*confirm)(void *context);                   /* keep the running image, and end any trial: 0, or -1 */
    void (*give_up)(void *context);                  /* the next start has the image before */
    wm_verify verify;                                /* with public keys that are part of this firmware */
    void (*hash_begin)(void *context);               /* SHA-256 */
    void (*hash_add)(void *context, const uint8_t *data, size_t length);
    void (*hash_end)(void *context, uint8_t *digest);
    uint32_t (*ticks_ms)(void *context);
    uint32_t (*time_s)(void *context);               /* since 1970; 0 while it is unknown */
    uint32_t (*random)(void *context);
    void (*log)(void *context, const char *text);
};

struct wu_settings {
    const char *name, *version, *board; /* of this firmware, as its manifest has them */
    uint64_t sequence;
    uint32_t slot_bytes;
    uint32_t ask_s;                     /* time between two looks for a new image, at most a day */
    uint32_t trial_s;                   /* time in which a new image has to deliver a reading, at most a day */
    int has_key;                        /* 0: built without the key of a maker. Such an image never stays */
};

enum wu_status { WU_RUNS, WU_RESTART };

/* State of the update; about 5 KiB. Its members are for waypost_update.c. */
struct wu_update {
    const struct wu_port *port;
    const struct wu_transport *transport;
    const struct wu_settings *settings;
    /* stored */
    uint32_t count;
    uint8_t state, reported, fault, tries;
    uint32_t done;
    uint8_t envelope_id[8];
    struct wm_manifest target;
    /* not stored */
    uint8_t doing, is_on_trial, is_mislabelled, storage_failed, has_looked;
    uint32_t began_ms, rest_until_ms, retry_ms, look_at_ms;
    uint32_t have, part_end;
    /* list of the gateway */
    uint8_t depth, in_string, escaped, is_value, is_ours, is_firmware, is_broken;
    uint8_t has_boards, is_for_board, has_from, is_over_us;
    uint8_t key_length, word_length;
    char key[14], word[WU_NAME_MAX + 2], version[WM_VERSION_MAX + 1], best[WM_VERSION_MAX + 1];
    uint64_t number, best_sequence;
    uint8_t block[WU_BLOCK_BYTES];
};

/* Read the state. `transport` NULL: a new image is tried out, and none is looked for. Returns 0, or -1 if a setting is out
 * of range. */
int wu_begin(struct wu_update *update, const struct wu_settings *settings, const struct wu_port *port,
             const struct wu_transport *transport);

/* Do what is due; it never waits, but verifying a signature takes its time. `delivered`: a reading of this start was
 * acknowledged (`wp_delivered`). WU_RESTART: restart the board now. */
enum wu_status wu_step(struct wu_update *update, int delivered);

/* 1 while `wu_step` has work now: call it again soon. */
int wu_is_busy(const struct wu_update *update);

#endif
