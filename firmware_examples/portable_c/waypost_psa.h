/* Checks of an update with PSA Crypto: mbedTLS 2.28 and later, ESP-IDF, Zephyr. PSA in mbedTLS has no Ed25519: the maker
 * makes its key with `waypost artefact keygen --algorithm es256`. */
#ifndef WAYPOST_PSA_H
#define WAYPOST_PSA_H

#include <psa/crypto.h>

#include "waypost_update.h"

#define WC_KEY_BYTES 91u /* of a public key for ES256, in DER: SubjectPublicKeyInfo */

struct wc_crypto {
    psa_hash_operation_t hash;
    psa_key_id_t key;
    uint8_t key_id[WM_KEY_ID_BYTES];
    int has_key, is_broken; /* is_broken: the hash in progress failed */
};

/* Take the public key of the maker; `length` 1: there is none, and no image is accepted. Returns 0, or -1 if it is no key
 * for ES256. */
int wc_begin(struct wc_crypto *crypto, const uint8_t *der, size_t length);

/* Functions of `struct wu_port`; hand them the `struct wc_crypto`. */
enum wm_fault wc_verify(struct wc_crypto *crypto, int algorithm, const uint8_t *key_id, const uint8_t *statement,
                        size_t length, const uint8_t *signature);
void wc_hash_begin(struct wc_crypto *crypto);
void wc_hash_add(struct wc_crypto *crypto, const uint8_t *data, size_t length);
void wc_hash_end(struct wc_crypto *crypto, uint8_t *digest);

#endif
