/* See waypost_psa.h. */
#include "waypost_psa.h"

#include <string.h>

enum { POINT_BYTES = 65, CURVE_BITS = 256 };

int wc_begin(struct wc_crypto *crypto, const uint8_t *der, size_t length) {
    uint8_t digest[WM_DIGEST_BYTES];
    size_t digest_length;
    psa_key_attributes_t attributes = psa_key_attributes_init();
    memset(crypto, 0, sizeof *crypto);
    if (psa_crypto_init() != PSA_SUCCESS) return -1;
    if (length == 1) return 0;
    if (length != WC_KEY_BYTES) return -1;
    psa_set_key_type(&attributes, PSA_KEY_TYPE_ECC_PUBLIC_KEY(PSA_ECC_FAMILY_SECP_R1));
    psa_set_key_bits(&attributes, CURVE_BITS);
    psa_set_key_algorithm(&attributes, PSA_ALG_ECDSA(PSA_ALG_SHA_256));
    psa_set_key_usage_flags(&attributes, PSA_KEY_USAGE_VERIFY_MESSAGE | PSA_KEY_USAGE_VERIFY_HASH);
    if (psa_import_key(&attributes, der + WC_KEY_BYTES - POINT_BYTES, POINT_BYTES, &crypto->key) != PSA_SUCCESS) return -1;
    if (psa_hash_compute(PSA_ALG_SHA_256, der, length, digest, sizeof digest, &digest_length) != PSA_SUCCESS) return -1;
    memcpy(crypto->key_id, digest, sizeof crypto->key_id);
    crypto->has_key = 1;
    return 0;
}

enum wm_fault wc_verify(struct wc_crypto *crypto, int algorithm, const uint8_t *key_id, const uint8_t *statement,
                        size_t length, const uint8_t *signature) {
    if (!crypto->has_key || memcmp(key_id, crypto->key_id, sizeof crypto->key_id)) return WM_UNKNOWN_KEY;
    if (algorithm != WM_ES256) return WM_FORGED;
    psa_status_t status = psa_verify_message(crypto->key, PSA_ALG_ECDSA(PSA_ALG_SHA_256), statement, length, signature,
                                             WM_SIGNATURE_BYTES);
    return status == PSA_SUCCESS ? WM_FINE : WM_FORGED;
}

void wc_hash_begin(struct wc_crypto *crypto) {
    psa_hash_abort(&crypto->hash);
    crypto->is_broken = psa_hash_setup(&crypto->hash, PSA_ALG_SHA_256) != PSA_SUCCESS;
}

void wc_hash_add(struct wc_crypto *crypto, const uint8_t *data, size_t length) {
    if (psa_hash_update(&crypto->hash, data, length) != PSA_SUCCESS) crypto->is_broken = 1;
}

void wc_hash_end(struct wc_crypto *crypto, uint8_t *digest) {
    size_t length;
    if (psa_hash_finish(&crypto->hash, digest, WM_DIGEST_BYTES, &length) != PSA_SUCCESS || crypto->is_broken)
        memset(digest, 0, WM_DIGEST_BYTES); /* the checksum of nothing: the image is refused */
}
