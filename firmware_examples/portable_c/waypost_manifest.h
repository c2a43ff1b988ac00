/* Signed manifest of a new image: COSE_Sign1 around a CBOR map, in the one encoding that a maker's `sign` makes. */
#ifndef WAYPOST_MANIFEST_H
#define WAYPOST_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#define WM_ENVELOPE_MAX 1024u /* bytes of a manifest: one with 20 boards. The maker's limit is 16 KiB */
#define WM_HEADROOM 10u       /* free bytes in front of an envelope, in which the signed statement is built */
#define WM_VERSION_MAX 64u
#define WM_DIGEST_BYTES 32u
#define WM_KEY_ID_BYTES 8u
#define WM_SIGNATURE_BYTES 64u
#define WM_ED25519 (-8)
#define WM_ES256 (-7)

/* Reasons of a report, as docs/how-to/update-devices.md lists them; the last five are reasons of a roll-back. */
enum wm_fault {
    WM_FINE, WM_FORGED, WM_TRUNCATED, WM_TOO_LARGE, WM_MALFORMED, WM_UNKNOWN_KEY, WM_UNSUPPORTED, WM_NOT_YET_VALID,
    WM_DOWNGRADED, WM_WRONG_BOARD, WM_WRONG_FROM_VERSION, WM_NOT_HEALTHY, WM_RESTARTED, WM_WRONG_SEQUENCE,
    WM_CANNOT_INSTALL, WM_NO_KEY, WM_FAULTS
};

/* What the device is; an image has to fit to it. */
struct wm_place {
    const char *name, *board, *version;
    uint64_t sequence;
    uint32_t slot_bytes, time_s; /* time_s: since 1970; 0 while it is unknown */
};

struct wm_manifest {
    uint64_t sequence;
    uint32_t size;
    uint8_t sha256[WM_DIGEST_BYTES];
    char version[WM_VERSION_MAX + 1];
};

/* Verify a signature of COSE (64 bytes, for ES256 r and s) with the key of this identifier: WM_FINE, WM_FORGED or
 * WM_UNKNOWN_KEY. */
typedef enum wm_fault (*wm_verify)(void *context, int algorithm, const uint8_t *key_id, const uint8_t *statement,
                                   size_t length, const uint8_t *signature);

/* Verify an envelope and what it says; `buffer` has WM_HEADROOM bytes in front of it, and is changed. */
enum wm_fault wm_open(struct wm_manifest *manifest, uint8_t *buffer, size_t length, const struct wm_place *place,
                      wm_verify verify, void *context);

/* Return whether a text is a version, which may stand in a path. */
int wm_is_version(const char *text, size_t length);

const char *wm_reason(enum wm_fault fault);

#endif
