/*
 * An ESP32 that is this machine: ESP-IDF's functions with OpenSSL and files, and a program around the port.
 *
 * NVS has the readings in a spool file, so that the tests read it; the partitions are the slots of waypost-boot, which is
 * the boot loader. Flash behaves like flash: a byte that was not erased is not written.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "esp32_port.h"
#include "esp_idf_api.h"
#include "posix.h"

enum { SLOT_BYTES = 512, RECORD_BYTES = 256, PARTITION_BYTES = 16 << 20, STEP_US = 1000 };

/* --- esp_tls ---------------------------------------------------------------------------------------------------- */

struct esp_tls {
    int socket;
    esp_tls_conn_state_t state;
    SSL_CTX *configuration;
    SSL *session;
};

esp_tls_t *esp_tls_init(void) {
    esp_tls_t *tls = calloc(1, sizeof *tls);
    if (tls) tls->socket = -1;
    return tls;
}

esp_err_t esp_tls_set_conn_sockfd(esp_tls_t *tls, int sockfd) {
    tls->socket = sockfd;
    return ESP_OK;
}

esp_err_t esp_tls_set_conn_state(esp_tls_t *tls, esp_tls_conn_state_t conn_state) {
    tls->state = conn_state;
    return ESP_OK;
}

static BIO *pem_of(const unsigned char *text, unsigned int bytes) {
    if (text[bytes - 1]) abort(); /* PEM has to end with its zero byte, which counts */
    return BIO_new_mem_buf(text, (int)bytes - 1);
}

static int begin_session(esp_tls_t *tls, const char *host, const esp_tls_cfg_t *cfg) {
    tls->configuration = SSL_CTX_new(TLS_client_method());
    BIO *text = pem_of(cfg->cacert_buf, cfg->cacert_bytes);
    X509 *authority = PEM_read_bio_X509(text, NULL, NULL, NULL);
    BIO_free(text);
    if (!authority || !X509_STORE_add_cert(SSL_CTX_get_cert_store(tls->configuration), authority)) return -1;
    X509_free(authority);
    SSL_CTX_set_verify(tls->configuration, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(tls->configuration, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (cfg->clientcert_buf) {
        text = pem_of(cfg->clientcert_buf, cfg->clientcert_bytes);
        X509 *certificate = PEM_read_bio_X509(text, NULL, NULL, NULL);
        BIO_free(text);
        text = pem_of(cfg->clientkey_buf, cfg->clientkey_bytes);
        EVP_PKEY *key = PEM_read_bio_PrivateKey(text, NULL, NULL, NULL);
        BIO_free(text);
        if (SSL_CTX_use_certificate(tls->configuration, certificate) != 1
            || SSL_CTX_use_PrivateKey(tls->configuration, key) != 1)
            return -1;
        X509_free(certificate);
        EVP_PKEY_free(key);
    }
    tls->session = SSL_new(tls->configuration);
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls->session), host);
    SSL_set_connect_state(tls->session);
    return SSL_set_fd(tls->session, tls->socket) == 1 ? 0 : -1;
}

static int want_of(esp_tls_t *tls, int result) {
    int error = SSL_get_error(tls->session, result);
    return error == SSL_ERROR_WANT_READ ? ESP_TLS_ERR_SSL_WANT_READ
           : error == SSL_ERROR_WANT_WRITE ? ESP_TLS_ERR_SSL_WANT_WRITE : error == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

int esp_tls_conn_new_async(const char *hostname, int hostlen, int port, const esp_tls_cfg_t *cfg, esp_tls_t *tls) {
    (void)hostlen;
    (void)port;
    if (cfg->non_block) abort(); /* it would select on sets that only its own connecting fills */
    if (tls->state == ESP_TLS_CONNECTING) {
        if (tls->socket < 0 || begin_session(tls, hostname, cfg)) return -1;
        tls->state = ESP_TLS_HANDSHAKE;
    }
    if (tls->state != ESP_TLS_HANDSHAKE) return -1;
    int result = SSL_do_handshake(tls->session);
    if (result == 1) tls->state = ESP_TLS_DONE;
    return result == 1 ? 1 : want_of(tls, result) < -1 ? 0 : -1;
}

ssize_t esp_tls_conn_write(esp_tls_t *tls, const void *data, size_t datalen) {
    if (tls->state != ESP_TLS_DONE) abort();
    int sent = SSL_write(tls->session, data, (int)datalen);
    return sent > 0 ? sent : want_of(tls, sent);
}

ssize_t esp_tls_conn_read(esp_tls_t *tls, void *data, size_t datalen) {
    if (tls->state != ESP_TLS_DONE) abort();
    int got = SSL_read(tls->session, data, (int)datalen);
    return got > 0 ? got : want_of(tls, got);
}

int esp_tls_conn_destroy(esp_tls_t *tls) {
    SSL_free(tls->session);
    SSL_CTX_free(tls->configuration);
    close(tls->socket);
    free(tls);
    return 0;
}

/* --- NVS -------------------------------------------------------------------------------------------------------- */

static int spool = -1, records = -1;

static int open_blobs(const char *path) { return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644); }

esp_err_t nvs_open(const char *namespace_name, nvs_open_mode_t open_mode, nvs_handle_t *out_handle) {
    char path[4096];
    if (strlen(namespace_name) > 15 || open_mode != NVS_READWRITE) abort();
    spool = open_blobs(setting("WAYPOST_SPOOL", "readings.spool"));
    snprintf(path, sizeof path, "%s/update0", setting("WAYPOST_SLOTS", "."));
    records = open_blobs(path);
    *out_handle = 7;
    return spool >= 0 && records >= 0 ? ESP_OK : ESP_FAIL;
}

/* Return the file and place of a key. */
static int place_of(const char *key, size_t length, off_t *at) {
    int is_reading = key[0] == 'r';
    if (strlen(key) > 15 || length != (is_reading ? SLOT_BYTES : RECORD_BYTES)) abort();
    *at = (off_t)(strtol(key + (is_reading ? 1 : strlen("update")), NULL, 10) * (long)length);
    return is_reading ? spool : records;
}

esp_err_t nvs_set_blob(nvs_handle_t handle, const char *key, const void *value, size_t length) {
    off_t at;
    int file = place_of(key, length, &at);
    return handle == 7 && pwrite(file, value, length, at) == (ssize_t)length ? ESP_OK : ESP_FAIL;
}

esp_err_t nvs_get_blob(nvs_handle_t handle, const char *key, void *out_value, size_t *length) {
    off_t at;
    int file = place_of(key, *length, &at);
    return handle == 7 && pread(file, out_value, *length, at) == (ssize_t)*length ? ESP_OK : ESP_ERR_NVS_NOT_FOUND;
}

esp_err_t nvs_commit(nvs_handle_t handle) {
    (void)handle;
    return fdatasync(spool) || fdatasync(records) ? ESP_FAIL : ESP_OK;
}

/* --- partitions and boot loader --------------------------------------------------------------------------------- */

static esp_partition_t partitions[2] = {{.size = PARTITION_BYTES, .label = "slot0"}, {.size = PARTITION_BYTES, .label = "slot1"}};
static int image = -1;

static int running(void) { return setting("WAYPOST_SLOT", "0")[0] == '1'; }

const esp_partition_t *esp_ota_get_running_partition(void) { return &partitions[running()]; }

const esp_partition_t *esp_ota_get_next_update_partition(const esp_partition_t *start_from) {
    char path[4096];
    if (start_from) abort();
    if (!setting("WAYPOST_SLOT", NULL)) return NULL;
    snprintf(path, sizeof path, "%s/slot%d", setting("WAYPOST_SLOTS", "."), !running());
    if (image < 0) image = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0755);
    return &partitions[!running()];
}

esp_err_t esp_partition_read(const esp_partition_t *partition, size_t src_offset, void *dst, size_t size) {
    if (partition != &partitions[!running()] || src_offset + size > partition->size) abort();
    return pread(image, dst, size, (off_t)src_offset) == (ssize_t)size ? ESP_OK : ESP_FAIL;
}

esp_err_t esp_partition_write(const esp_partition_t *partition, size_t dst_offset, const void *src, size_t size) {
    uint8_t before[4096];
    if (partition != &partitions[!running()] || size > sizeof before) abort();
    ssize_t there = pread(image, before, size, (off_t)dst_offset);
    for (ssize_t index = 0; index < there; index++)
        if (before[index] != 0xFF) abort(); /* not erased */
    return pwrite(image, src, size, (off_t)dst_offset) == (ssize_t)size && !fdatasync(image) ? ESP_OK : ESP_FAIL;
}

esp_err_t esp_partition_erase_range(const esp_partition_t *partition, size_t offset, size_t size) {
    static uint8_t erased[4096];
    if (partition != &partitions[!running()] || offset % 4096 || size != 4096 || offset + size > partition->size) abort();
    memset(erased, 0xFF, sizeof erased);
    return pwrite(image, erased, size, (off_t)offset) == (ssize_t)size ? ESP_OK : ESP_FAIL;
}

esp_err_t esp_ota_set_boot_partition(const esp_partition_t *partition) {
    struct boot_record record = {running(), !running(), 0};
    if (partition != &partitions[!running()] || fchmod(image, 0755)) return ESP_FAIL;
    return boot_write(setting("WAYPOST_SLOTS", "."), &record) ? ESP_FAIL : ESP_OK;
}

esp_err_t esp_ota_get_state_partition(const esp_partition_t *partition, esp_ota_img_states_t *ota_state) {
    struct boot_record record;
    if (partition != &partitions[running()]) abort();
    if (boot_read(setting("WAYPOST_SLOTS", "."), &record)) return ESP_ERR_NOT_FOUND;
    *ota_state = record.kept == running() ? ESP_OTA_IMG_VALID : ESP_OTA_IMG_PENDING_VERIFY;
    return ESP_OK;
}

esp_err_t esp_ota_mark_app_valid_cancel_rollback(void) {
    struct boot_record record = {running(), -1, 0};
    return boot_write(setting("WAYPOST_SLOTS", "."), &record) ? ESP_FAIL : ESP_OK;
}

uint32_t esp_random(void) { return random_word(NULL); }

int64_t esp_timer_get_time(void) { return monotonic_ms() * 1000; }

/* ESP-IDF's boot loader goes back at the first restart without a confirmation. */
void esp_restart(void) {
    struct boot_record record;
    const char *folder = setting("WAYPOST_SLOTS", ".");
    if (!boot_read(folder, &record) && record.trial == running() && record.kept != running()) {
        record = (struct boot_record){record.kept, -1, 0};
        boot_write(folder, &record);
    }
    _exit(EXIT_RESTART);
}

/* --- the program around the port -------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_requested;

static void on_signal(int number) {
    (void)number;
    stop_requested = 1;
}

static size_t measure(void *context, char *json, size_t size) {
    (void)context;
    int length = snprintf(json, size, "\"rssi_dbm\":-61");
    return length > 0 && (size_t)length < size ? (size_t)length : 0;
}

static const char *text_of(const char *name) {
    const char *path = setting(name, NULL);
    if (!path) return NULL;
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 16);
    if (!file || !text || !fread(text, 1, (1 << 16) - 1, file)) fail_setting(name, "cannot be read");
    fclose(file);
    return text;
}

int main(void) {
    struct esp32_settings settings = {
        .host = setting("WAYPOST_HOST", "127.0.0.1"),
        .port = (uint16_t)number_of("WAYPOST_PORT", 1883),
        .http_port = (uint16_t)number_of("WAYPOST_HTTP_PORT", 0),
        .device = setting("WAYPOST_DEVICE", "pump7"),
        .password = setting("WAYPOST_PASSWORD", NULL),
        .ca = text_of("WAYPOST_CA"),
        .certificate = text_of("WAYPOST_CERTIFICATE"),
        .key = text_of("WAYPOST_KEY"),
        .slots = number_of("WAYPOST_SPOOL_READINGS", 1024),
        .interval_ms = number_of("WAYPOST_INTERVAL_MS", 1000),
        .ask_s = number_of("WAYPOST_UPDATE_S", 3600),
        .trial_s = number_of("WAYPOST_TRIAL_S", 600),
        .measure = measure,
        .log = say,
    };
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, on_signal);
    if (esp32_begin(&settings)) return 2;
    unsigned watchdog_s = number_of("WAYPOST_WATCHDOG_S", 30);
    int ended;
    while (!(ended = esp32_step())) {
        alarm(watchdog_s);
        if (stop_requested) esp32_stop();
        usleep(STEP_US);
    }
    return ended > 0 ? 0 : 1;
}
