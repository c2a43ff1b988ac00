/* Update of the program by itself: two files are the slots, OpenSSL verifies, and posix_boot.c plays the boot loader. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "firmware.h"
#include "posix.h"
#include "waypost_http.h"

enum { KEYS_MAX = 4, PATH_BYTES = 4096, SLOT_BYTES_MAX = 64 << 20, ASK_S = 3600, TRIAL_S = 600 };

struct updater {
    const char *folder;
    int running, image, records[2];
    EVP_PKEY *keys[KEYS_MAX];
    EVP_MD_CTX *hash;
    uint32_t (*time_s)(void *);
    void *clock;
    char host[256], port_number[8];
    struct connection connection;
    struct wh_settings http_settings;
    struct wh_port http_port;
    struct wh_client http;
    struct wu_settings settings;
    struct wu_port port;
    struct wu_transport transport;
    struct wu_update update;
};

/* --- slots ------------------------------------------------------------------------------------------------------ */

static int write_image(void *context, uint32_t at, const uint8_t *data, size_t length) {
    struct updater *updater = context;
    if (!at && ftruncate(updater->image, 0)) return -1;
    return pwrite(updater->image, data, length, (off_t)at) == (ssize_t)length ? 0 : -1;
}

static int read_image(void *context, uint32_t at, uint8_t *data, size_t length) {
    struct updater *updater = context;
    return pread(updater->image, data, length, (off_t)at) == (ssize_t)length ? 0 : -1;
}

static int read_record(void *context, uint32_t index, uint8_t *data) {
    struct updater *updater = context;
    return pread(updater->records[index], data, WU_RECORD_BYTES, 0) == WU_RECORD_BYTES ? 0 : -1;
}

static int write_record(void *context, uint32_t index, const uint8_t *data) {
    struct updater *updater = context;
    if (fdatasync(updater->image)) return -1; /* the record says how much of it is there */
    if (pwrite(updater->records[index], data, WU_RECORD_BYTES, 0) != WU_RECORD_BYTES) return -1;
    return fdatasync(updater->records[index]);
}

/* --- boot loader ------------------------------------------------------------------------------------------------ */

static int is_confirmed(void *context) {
    struct updater *updater = context;
    struct boot_record record;
    if (boot_read(updater->folder, &record)) return errno == ENOENT; /* none: the first start ever */
    return record.kept == updater->running;
}

static int try_image(void *context, uint32_t size) {
    struct updater *updater = context;
    struct boot_record record = {updater->running, !updater->running, 0};
    if (ftruncate(updater->image, (off_t)size) || fchmod(updater->image, 0755) || fsync(updater->image)) return -1;
    return boot_write(updater->folder, &record);
}

static int confirm(void *context) {
    struct updater *updater = context;
    struct boot_record record = {updater->running, -1, 0};
    return boot_write(updater->folder, &record);
}

static void give_up(void *context) {
    struct updater *updater = context;
    struct boot_record record = {!updater->running, -1, 0};
    if (boot_write(updater->folder, &record)) say(NULL, "the record of the boot loader cannot be written");
}

/* --- checks ----------------------------------------------------------------------------------------------------- */

static int has_id(EVP_PKEY *key, const uint8_t *id) {
    uint8_t *der = NULL, digest[32];
    int length = i2d_PUBKEY(key, &der), same = 0;
    if (length > 0 && EVP_Digest(der, (size_t)length, digest, NULL, EVP_sha256(), NULL))
        same = !memcmp(digest, id, WM_KEY_ID_BYTES);
    OPENSSL_free(der);
    return same;
}

/* Return the signature of COSE for ES256 (r and s) in DER, as OpenSSL takes it; the caller frees it. */
static int der_of(const uint8_t *signature, uint8_t **der) {
    ECDSA_SIG *pair = ECDSA_SIG_new();
    BIGNUM *r = BN_bin2bn(signature, 32, NULL), *s = BN_bin2bn(signature + 32, 32, NULL);
    int length = -1;
    if (pair && r && s && ECDSA_SIG_set0(pair, r, s)) {
        length = i2d_ECDSA_SIG(pair, der);
    } else {
        BN_free(r);
        BN_free(s);
    }
    ECDSA_SIG_free(pair);
    return length;
}

static enum wm_fault verify(void *context, int algorithm, const uint8_t *key_id, const uint8_t *statement, size_t length,
                            const uint8_t *signature) {
    struct updater *updater = context;
    EVP_PKEY *key = NULL;
    for (unsigned index = 0; index < KEYS_MAX && updater->keys[index] && !key; index++)
        if (has_id(updater->keys[index], key_id)) key = updater->keys[index];
    if (!key) return WM_UNKNOWN_KEY;
    int is_edwards = EVP_PKEY_get_base_id(key) == EVP_PKEY_ED25519, signed_bytes = WM_SIGNATURE_BYTES;
    if (is_edwards != (algorithm == WM_ED25519)) return WM_FORGED;
    uint8_t *der = NULL;
    if (!is_edwards && (signed_bytes = der_of(signature, &der)) <= 0) return WM_FORGED;
    EVP_MD_CTX *check = EVP_MD_CTX_new();
    int right = check && EVP_DigestVerifyInit(check, NULL, is_edwards ? NULL : EVP_sha256(), NULL, key) == 1
                && EVP_DigestVerify(check, der ? der : signature, (size_t)signed_bytes, statement, length) == 1;
    EVP_MD_CTX_free(check);
    OPENSSL_free(der);
    ERR_clear_error();
    return right ? WM_FINE : WM_FORGED;
}

static void hash_begin(void *context) { EVP_DigestInit_ex(((struct updater *)context)->hash, EVP_sha256(), NULL); }

static void hash_add(void *context, const uint8_t *data, size_t length) {
    EVP_DigestUpdate(((struct updater *)context)->hash, data, length);
}

static void hash_end(void *context, uint8_t *digest) {
    EVP_DigestFinal_ex(((struct updater *)context)->hash, digest, NULL);
}

static uint32_t clock_s(void *context) {
    struct updater *updater = context;
    return updater->time_s(updater->clock);
}

/* --- begin and end ---------------------------------------------------------------------------------------------- */

static int open_file(const char *folder, const char *name) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (opened < 0) fail_setting(path, "cannot be opened");
    return opened;
}

static int load_keys(struct updater *updater) {
    BIO *pem = BIO_new_mem_buf(maker_key, -1);
    unsigned count = 0;
    while (pem && count < KEYS_MAX && (updater->keys[count] = PEM_read_bio_PUBKEY(pem, NULL, NULL, NULL))) count++;
    BIO_free(pem);
    ERR_clear_error(); /* of the end of the text */
    if (!count) say(NULL, "this firmware has no key of a maker: it accepts no update. See MAKER_KEY in the Makefile");
    return count > 0;
}

/* Read "http://host:port" or "https://…". */
static void read_url(struct updater *updater, const char *url, SSL_CTX *tls) {
    int is_tls = !strncmp(url, "https://", 8);
    strcpy(updater->port_number, is_tls ? "443" : "80");
    if (sscanf(url, is_tls ? "https://%255[^:/]:%7[0-9]" : "http://%255[^:/]:%7[0-9]", updater->host,
               updater->port_number) < 1)
        fail_setting("WAYPOST_UPDATE_URL", "has to be http://HOST:PORT or https://HOST:PORT");
    if (is_tls && !tls) fail_setting("WAYPOST_UPDATE_URL", "with https needs WAYPOST_CA");
    updater->connection = (struct connection){updater->host, updater->port_number, is_tls ? tls : NULL, NULL, -1, 0};
}

struct updater *updater_begin(SSL_CTX *tls, const char *device, const char *password, uint32_t (*time_s)(void *),
                              void *context) {
    static struct updater updater = {.connection = {.socket = -1}};
    const char *url = setting("WAYPOST_UPDATE_URL", NULL), *slot = setting("WAYPOST_SLOT", NULL);
    updater.folder = setting("WAYPOST_SLOTS", NULL);
    if (url && (!updater.folder || !slot)) fail_setting("WAYPOST_UPDATE_URL", "needs the boot loader: start waypost-boot");
    if (!updater.folder || !slot) return NULL;
    updater.running = slot[0] == '1';
    updater.time_s = time_s;
    updater.clock = context;
    if (url) read_url(&updater, url, tls);
    int has_key = load_keys(&updater);
    updater.image = open_file(updater.folder, updater.running ? "slot0" : "slot1");
    updater.records[0] = open_file(updater.folder, "update0");
    updater.records[1] = open_file(updater.folder, "update1");
    updater.hash = EVP_MD_CTX_new();
    /* With TLS for MQTT, the password does not go over plain HTTP. */
    updater.http_settings = (struct wh_settings){updater.host, device, updater.connection.tls || !tls ? password : NULL};
    updater.http_port = (struct wh_port){&updater.connection, connection_open, connection_send, connection_receive,
                                         connection_close, ticks_ms, say};
    updater.port = (struct wu_port){&updater, write_image, read_image, read_record, write_record, try_image,
                                    is_confirmed, confirm, give_up, verify, hash_begin, hash_add, hash_end, ticks_ms,
                                    clock_s, random_word, say};
    updater.settings = (struct wu_settings){FIRMWARE_NAME, FIRMWARE_VERSION, FIRMWARE_BOARD, FIRMWARE_SEQUENCE,
                                            SLOT_BYTES_MAX, number_of("WAYPOST_UPDATE_S", ASK_S),
                                            number_of("WAYPOST_TRIAL_S", TRIAL_S), has_key};
    if (!updater.hash || wh_begin(&updater.http, &updater.transport, &updater.http_settings, &updater.http_port)
        || wu_begin(&updater.update, &updater.settings, &updater.port, url ? &updater.transport : NULL))
        fail_setting("WAYPOST_UPDATE_S or WAYPOST_TRIAL_S", "is out of range");
    say_two("firmware", FIRMWARE_NAME " " FIRMWARE_VERSION);
    return &updater;
}

enum wu_status updater_step(struct updater *updater, int delivered) { return wu_step(&updater->update, delivered); }

int updater_is_busy(const struct updater *updater) { return wu_is_busy(&updater->update); }

int updater_socket(const struct updater *updater) { return updater->connection.socket; }

void updater_end(struct updater *updater) {
    if (!updater) return;
    connection_close(&updater->connection);
    EVP_MD_CTX_free(updater->hash);
    for (unsigned index = 0; index < KEYS_MAX; index++) EVP_PKEY_free(updater->keys[index]);
}
