/* PSA Crypto on this machine, with OpenSSL: as strict as the specification about what a key may be used for. */
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "psa_api.h"

static EVP_PKEY *keys[4];
static psa_key_attributes_t attributes_of[4];
static int is_initialized;

psa_status_t psa_crypto_init(void) {
    is_initialized = 1;
    return PSA_SUCCESS;
}

psa_status_t psa_import_key(const psa_key_attributes_t *attributes, const uint8_t *data, size_t length, psa_key_id_t *key) {
    static unsigned count;
    if (!is_initialized) return PSA_ERROR_BAD_STATE;
    if (attributes->type != PSA_KEY_TYPE_ECC_PUBLIC_KEY(PSA_ECC_FAMILY_SECP_R1) || length != 65 || data[0] != 4
        || attributes->bits != 256 || count == 3)
        return PSA_ERROR_INVALID_ARGUMENT;
    OSSL_PARAM parts[] = {OSSL_PARAM_construct_utf8_string(OSSL_PKEY_PARAM_GROUP_NAME, (char *)"prime256v1", 0),
                          OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PUB_KEY, (void *)(uintptr_t)data, length),
                          OSSL_PARAM_construct_end()};
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    int made = EVP_PKEY_fromdata_init(context) == 1
               && EVP_PKEY_fromdata(context, &keys[count + 1], EVP_PKEY_PUBLIC_KEY, parts) == 1;
    EVP_PKEY_CTX_free(context);
    if (!made) return PSA_ERROR_INVALID_ARGUMENT;
    *key = ++count;
    attributes_of[count] = *attributes;
    return PSA_SUCCESS;
}

psa_status_t psa_verify_message(psa_key_id_t key, psa_algorithm_t algorithm, const uint8_t *input, size_t input_length,
                                const uint8_t *signature, size_t signature_length) {
    if (!key || key > 3 || !keys[key] || attributes_of[key].algorithm != algorithm || signature_length != 64
        || !(attributes_of[key].usage & PSA_KEY_USAGE_VERIFY_MESSAGE))
        return PSA_ERROR_INVALID_ARGUMENT;
    uint8_t *der = NULL;
    ECDSA_SIG *pair = ECDSA_SIG_new();
    ECDSA_SIG_set0(pair, BN_bin2bn(signature, 32, NULL), BN_bin2bn(signature + 32, 32, NULL));
    int length = i2d_ECDSA_SIG(pair, &der);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int right = length > 0 && EVP_DigestVerifyInit(context, NULL, EVP_sha256(), NULL, keys[key]) == 1
                && EVP_DigestVerify(context, der, (size_t)length, input, input_length) == 1;
    EVP_MD_CTX_free(context);
    ECDSA_SIG_free(pair);
    OPENSSL_free(der);
    return right ? PSA_SUCCESS : PSA_ERROR_INVALID_SIGNATURE;
}

psa_status_t psa_hash_compute(psa_algorithm_t algorithm, const uint8_t *input, size_t input_length, uint8_t *hash,
                              size_t size, size_t *length) {
    psa_hash_operation_t operation = {0};
    psa_status_t status = psa_hash_setup(&operation, algorithm);
    if (!status) status = psa_hash_update(&operation, input, input_length);
    return status ? status : psa_hash_finish(&operation, hash, size, length);
}

psa_status_t psa_hash_setup(psa_hash_operation_t *operation, psa_algorithm_t algorithm) {
    if (!is_initialized || operation->context) return PSA_ERROR_BAD_STATE;
    if (algorithm != PSA_ALG_SHA_256) return PSA_ERROR_INVALID_ARGUMENT;
    operation->context = EVP_MD_CTX_new();
    return EVP_DigestInit_ex(operation->context, EVP_sha256(), NULL) == 1 ? PSA_SUCCESS : PSA_ERROR_BAD_STATE;
}

psa_status_t psa_hash_update(psa_hash_operation_t *operation, const uint8_t *input, size_t length) {
    if (!operation->context) return PSA_ERROR_BAD_STATE;
    return EVP_DigestUpdate(operation->context, input, length) == 1 ? PSA_SUCCESS : PSA_ERROR_BAD_STATE;
}

psa_status_t psa_hash_finish(psa_hash_operation_t *operation, uint8_t *hash, size_t size, size_t *length) {
    unsigned made = 0;
    if (!operation->context || size < 32) return PSA_ERROR_BAD_STATE;
    EVP_DigestFinal_ex(operation->context, hash, &made);
    *length = made;
    return psa_hash_abort(operation);
}

psa_status_t psa_hash_abort(psa_hash_operation_t *operation) {
    EVP_MD_CTX_free(operation->context);
    operation->context = NULL;
    return PSA_SUCCESS;
}
