/* Declarations of PSA Crypto (Arm IHI 0086, API 1.1) that `firmware_examples/portable_c/waypost_psa.c` uses; values as in
 * mbedTLS 3.6. psa_host.c plays them on this machine. */
#ifndef PSA_API_H
#define PSA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t psa_status_t;
typedef uint32_t psa_algorithm_t, psa_key_id_t, psa_key_usage_t;
typedef uint16_t psa_key_type_t;
typedef struct { psa_key_type_t type; size_t bits; psa_algorithm_t algorithm; psa_key_usage_t usage; } psa_key_attributes_t;
typedef struct { void *context; } psa_hash_operation_t;

#define PSA_SUCCESS ((psa_status_t)0)
#define PSA_ERROR_INVALID_SIGNATURE ((psa_status_t)-149)
#define PSA_ERROR_INVALID_ARGUMENT ((psa_status_t)-135)
#define PSA_ERROR_BAD_STATE ((psa_status_t)-137)
#define PSA_ALG_SHA_256 ((psa_algorithm_t)0x02000009)
#define PSA_ALG_ECDSA(hash) ((psa_algorithm_t)(0x06000600 | ((hash) & 0xff)))
#define PSA_ECC_FAMILY_SECP_R1 0x12
#define PSA_KEY_TYPE_ECC_PUBLIC_KEY(curve) ((psa_key_type_t)(0x4100 | (curve)))
#define PSA_KEY_USAGE_VERIFY_MESSAGE ((psa_key_usage_t)0x00000800)
#define PSA_KEY_USAGE_VERIFY_HASH ((psa_key_usage_t)0x00002000)

static inline psa_key_attributes_t psa_key_attributes_init(void) { return (psa_key_attributes_t){0}; }
static inline void psa_set_key_type(psa_key_attributes_t *a, psa_key_type_t type) { a->type = type; }
static inline void psa_set_key_bits(psa_key_attributes_t *a, size_t bits) { a->bits = bits; }
static inline void psa_set_key_algorithm(psa_key_attributes_t *a, psa_algorithm_t algorithm) { a->algorithm = algorithm; }
static inline void psa_set_key_usage_flags(psa_key_attributes_t *a, psa_key_usage_t usage) { a->usage = usage; }

psa_status_t psa_crypto_init(void);
psa_status_t psa_import_key(const psa_key_attributes_t *attributes, const uint8_t *data, size_t length, psa_key_id_t *key);
psa_status_t psa_verify_message(psa_key_id_t key, psa_algorithm_t algorithm, const uint8_t *input, size_t input_length,
                                const uint8_t *signature, size_t signature_length);
psa_status_t psa_hash_compute(psa_algorithm_t algorithm, const uint8_t *input, size_t input_length, uint8_t *hash,
                              size_t size, size_t *length);
psa_status_t psa_hash_setup(psa_hash_operation_t *operation, psa_algorithm_t algorithm);
psa_status_t psa_hash_update(psa_hash_operation_t *operation, const uint8_t *input, size_t length);
psa_status_t psa_hash_finish(psa_hash_operation_t *operation, uint8_t *hash, size_t size, size_t *length);
psa_status_t psa_hash_abort(psa_hash_operation_t *operation);

#endif
