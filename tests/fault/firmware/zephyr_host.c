/*
 * A board with Zephyr and MCUboot that is this machine: Zephyr's functions with OpenSSL, threads and files, and a program
 * around the port. NVS has the readings in a spool file, so that the tests read it; the slots are those of waypost-boot.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix.h"
#include "zephyr_api.h"
#include "zephyr_port.h"

enum { SLOT_BYTES = 512, RECORD_BYTES = 256, RECORD_ID = 60000, AREA_BYTES = 16 << 20, SECTOR_BYTES = 4096, ALIGN = 8,
       TRAILER_BYTES = 6000, STEP_US = 1000, CONNECT_MS = 3000, SOCKETS_MAX = 1024, KEY_BYTES_MAX = 1 << 16 };

/* --- kernel ----------------------------------------------------------------------------------------------------- */

bool atomic_cas(atomic_t *target, atomic_val_t old_value, atomic_val_t new_value) {
    return __atomic_compare_exchange_n(target, &old_value, new_value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

atomic_val_t atomic_get(const atomic_t *target) { return __atomic_load_n(target, __ATOMIC_SEQ_CST); }

atomic_val_t atomic_set(atomic_t *target, atomic_val_t value) {
    return __atomic_exchange_n(target, value, __ATOMIC_SEQ_CST);
}

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;
static struct k_work *waiting[4];

static void *run_queue(void *context) {
    for (int ends = 0; !ends;) { /* never */
        pthread_mutex_lock(&queue_lock);
        while (!waiting[0]) pthread_cond_wait(&queue_filled, &queue_lock);
        struct k_work *work = waiting[0];
        memmove(waiting, waiting + 1, sizeof waiting - sizeof *waiting);
        pthread_mutex_unlock(&queue_lock);
        work->handler(work);
    }
    return context;
}

void k_work_init(struct k_work *work, k_work_handler_t handler) { work->handler = handler; }

void k_work_queue_init(struct k_work_q *queue) { queue->is_started = 0; }

void k_work_queue_start(struct k_work_q *queue, k_thread_stack_t *stack, size_t stack_size, int prio,
                        const struct k_work_queue_config *cfg) {
    pthread_t thread;
    if (!stack || stack_size < 4096 || prio < 0 || cfg || pthread_create(&thread, NULL, run_queue, NULL)) abort();
    queue->is_started = 1;
}

int k_work_submit_to_queue(struct k_work_q *queue, struct k_work *work) {
    int index = 0;
    if (!queue->is_started) abort();
    pthread_mutex_lock(&queue_lock);
    while (index < 3 && waiting[index] && waiting[index] != work) index++;
    waiting[index] = work;
    pthread_cond_signal(&queue_filled);
    pthread_mutex_unlock(&queue_lock);
    return 1;
}

uint32_t k_uptime_get_32(void) { return (uint32_t)monotonic_ms(); }

uint32_t sys_rand32_get(void) { return random_word(NULL); }

/* MCUboot goes back at the first restart without a confirmation. */
void sys_reboot(int type) {
    struct boot_record record;
    const char *folder = setting("WAYPOST_SLOTS", ".");
    int running = setting("WAYPOST_SLOT", "0")[0] == '1';
    (void)type;
    if (!boot_read(folder, &record) && record.trial == running && record.kept != running) {
        record = (struct boot_record){record.kept, -1, 0};
        boot_write(folder, &record);
    }
    _exit(EXIT_RESTART);
}

/* --- sockets ---------------------------------------------------------------------------------------------------- */

static struct { int is_tls, has_tags, is_verified; char host[256]; SSL *session; } sockets[SOCKETS_MAX];
static const char *credentials[TLS_CREDENTIAL_PRIVATE_KEY + 1];

int tls_credential_add(sec_tag_t tag, enum tls_credential_type type, const void *cred, size_t credlen) {
    const char *text = cred;
    if (tag != 1 || credlen < 2 || text[credlen - 1]) return -EINVAL; /* PEM counts its zero byte */
    credentials[type] = text;
    return 0;
}

int zsock_getaddrinfo(const char *host, const char *service, const struct zsock_addrinfo *hints, struct zsock_addrinfo **res) {
    return getaddrinfo(host, service, hints, res);
}

void zsock_freeaddrinfo(struct zsock_addrinfo *ai) { freeaddrinfo(ai); }

int zsock_socket(int family, int type, int proto) {
    int made = socket(family, type | SOCK_CLOEXEC, 0);
    if (made >= SOCKETS_MAX) abort();
    if (made >= 0) memset(&sockets[made], 0, sizeof sockets[made]);
    if (made >= 0) sockets[made].is_tls = proto == IPPROTO_TLS_1_2;
    return made;
}

int zsock_setsockopt(int sock, int level, int optname, const void *optval, socklen_t optlen) {
    const char *host = optval;
    if (level != SOL_TLS || !sockets[sock].is_tls) abort();
    if (optname == TLS_SEC_TAG_LIST) sockets[sock].has_tags = *(const sec_tag_t *)optval == 1 && optlen == sizeof(sec_tag_t);
    if (optname == TLS_PEER_VERIFY) sockets[sock].is_verified = *(const int *)optval == TLS_PEER_VERIFY_REQUIRED;
    if (optname == TLS_HOSTNAME) {
        if (!optlen || host[optlen - 1]) abort();
        snprintf(sockets[sock].host, sizeof sockets[sock].host, "%s", host);
    }
    return 0;
}

static SSL_CTX *configuration(void) {
    static SSL_CTX *made;
    if (made) return made;
    made = SSL_CTX_new(TLS_client_method());
    BIO *text = BIO_new_mem_buf(credentials[TLS_CREDENTIAL_CA_CERTIFICATE], -1);
    X509 *authority = PEM_read_bio_X509(text, NULL, NULL, NULL);
    BIO_free(text);
    X509_STORE_add_cert(SSL_CTX_get_cert_store(made), authority);
    SSL_CTX_set_verify(made, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (credentials[TLS_CREDENTIAL_PUBLIC_CERTIFICATE]) {
        text = BIO_new_mem_buf(credentials[TLS_CREDENTIAL_PUBLIC_CERTIFICATE], -1);
        SSL_CTX_use_certificate(made, PEM_read_bio_X509(text, NULL, NULL, NULL));
        text = BIO_new_mem_buf(credentials[TLS_CREDENTIAL_PRIVATE_KEY], -1);
        SSL_CTX_use_PrivateKey(made, PEM_read_bio_PrivateKey(text, NULL, NULL, NULL));
    }
    return made;
}

/* It waits for the connection and the handshake, as Zephyr does. */
int zsock_connect(int sock, const struct sockaddr *addr, socklen_t addrlen) {
    struct timeval limit = {.tv_sec = CONNECT_MS / 1000};
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(sock, addr, addrlen)) return -1;
    if (!sockets[sock].is_tls) return 0;
    if (!sockets[sock].has_tags || !sockets[sock].is_verified || !sockets[sock].host[0]) abort(); /* it trusts nobody else */
    SSL *session = sockets[sock].session = SSL_new(configuration());
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), sockets[sock].host);
    SSL_set_fd(session, sock);
    int shaken = SSL_connect(session) == 1;
    ERR_clear_error();
    if (shaken) fcntl(sock, F_SETFL, fcntl(sock, F_GETFL) | O_NONBLOCK); /* all calls after this one do not wait */
    return shaken ? 0 : -1;
}

static ssize_t after_tls(SSL *session, int result) {
    if (result > 0) return result;
    int error = SSL_get_error(session, result);
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
    ERR_clear_error();
    return error == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

ssize_t zsock_send(int sock, const void *buf, size_t len, int flags) {
    if (flags != ZSOCK_MSG_DONTWAIT) abort();
    if (sockets[sock].session) return after_tls(sockets[sock].session, SSL_write(sockets[sock].session, buf, (int)len));
    return send(sock, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t zsock_recv(int sock, void *buf, size_t max_len, int flags) {
    if (flags != ZSOCK_MSG_DONTWAIT) abort();
    if (sockets[sock].session) return after_tls(sockets[sock].session, SSL_read(sockets[sock].session, buf, (int)max_len));
    return recv(sock, buf, max_len, MSG_DONTWAIT);
}

int zsock_close(int sock) {
    SSL_free(sockets[sock].session);
    sockets[sock].session = NULL;
    return close(sock);
}

/* --- flash and NVS ---------------------------------------------------------------------------------------------- */

const struct device host_flash = {1};
static struct flash_area area = {.fa_id = slot1_partition, .fa_size = AREA_BYTES, .fa_dev = &host_flash};
static int image = -1, spool = -1, records = -1;

int flash_get_page_info_by_offs(const struct device *dev, off_t offset, struct flash_pages_info *info) {
    if (dev != &host_flash || offset) abort();
    info->size = SECTOR_BYTES;
    return 0;
}

int flash_area_open(uint8_t id, const struct flash_area **fa) {
    char path[4096];
    if (id != slot1_partition || !setting("WAYPOST_SLOT", NULL)) return -ENOENT;
    snprintf(path, sizeof path, "%s/slot%d", setting("WAYPOST_SLOTS", "."), setting("WAYPOST_SLOT", "0")[0] != '1');
    image = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0755);
    *fa = &area;
    return image < 0 ? -EIO : 0;
}

int flash_area_read(const struct flash_area *fa, off_t off, void *dst, size_t len) {
    if (fa != &area || off + (off_t)len > AREA_BYTES) abort();
    return pread(image, dst, len, off) == (ssize_t)len ? 0 : -EIO;
}

int flash_area_write(const struct flash_area *fa, off_t off, const void *src, size_t len) {
    uint8_t before[SECTOR_BYTES];
    if (fa != &area || off % ALIGN || len % ALIGN || len > sizeof before || off + (off_t)len > AREA_BYTES) abort();
    ssize_t there = pread(image, before, len, off);
    for (ssize_t index = 0; index < there; index++)
        if (before[index] != 0xFF) abort(); /* not erased */
    return pwrite(image, src, len, off) == (ssize_t)len && !fdatasync(image) ? 0 : -EIO;
}

int flash_area_erase(const struct flash_area *fa, off_t off, size_t len) {
    static uint8_t erased[SECTOR_BYTES];
    if (fa != &area || off % SECTOR_BYTES || len % SECTOR_BYTES || off + (off_t)len > AREA_BYTES) abort();
    if (off >= AREA_BYTES - 2 * SECTOR_BYTES) return 0; /* the state of MCUboot: a program file has none */
    memset(erased, 0xFF, sizeof erased);
    for (; len; len -= SECTOR_BYTES, off += SECTOR_BYTES)
        if (pwrite(image, erased, sizeof erased, off) != SECTOR_BYTES) return -EIO;
    return 0;
}

uint32_t flash_area_align(const struct flash_area *fa) { return fa == &area ? ALIGN : 0; }

uint8_t flash_area_erased_val(const struct flash_area *fa) { return fa == &area ? 0xFF : 0; }

int nvs_mount(struct nvs_fs *fs) {
    char path[4096];
    if (fs->sector_size != SECTOR_BYTES || fs->sector_count < 3 || fs->flash_device != &host_flash) abort();
    snprintf(path, sizeof path, "%s/update0", setting("WAYPOST_SLOTS", "."));
    spool = open(setting("WAYPOST_SPOOL", "readings.spool"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    records = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    return spool < 0 || records < 0 ? -EIO : 0;
}

/* Return the file and place of an entry. */
static int place_of(uint16_t id, size_t length, off_t *at) {
    int is_record = id >= RECORD_ID;
    if (!id || length != (is_record ? RECORD_BYTES : SLOT_BYTES)) abort();
    *at = (off_t)length * (is_record ? id - RECORD_ID : id - 1);
    return is_record ? records : spool;
}

ssize_t nvs_write(struct nvs_fs *fs, uint16_t id, const void *data, size_t len) {
    off_t at;
    int file = place_of(id, len, &at);
    (void)fs;
    return pwrite(file, data, len, at) == (ssize_t)len && !fdatasync(file) ? (ssize_t)len : -EIO;
}

ssize_t nvs_read(struct nvs_fs *fs, uint16_t id, void *data, size_t len) {
    off_t at;
    int file = place_of(id, len, &at);
    (void)fs;
    return pread(file, data, len, at) == (ssize_t)len ? (ssize_t)len : -ENOENT;
}

/* --- MCUboot ---------------------------------------------------------------------------------------------------- */

ssize_t boot_get_trailer_status_offset(size_t area_size) { return (ssize_t)area_size - TRAILER_BYTES; }

bool boot_is_img_confirmed(void) {
    struct boot_record record;
    int running = setting("WAYPOST_SLOT", "0")[0] == '1';
    return boot_read(setting("WAYPOST_SLOTS", "."), &record) || record.kept == running;
}

int boot_write_img_confirmed(void) {
    struct boot_record record = {setting("WAYPOST_SLOT", "0")[0] == '1', -1, 0};
    return boot_write(setting("WAYPOST_SLOTS", "."), &record);
}

int boot_request_upgrade(int permanent) {
    int running = setting("WAYPOST_SLOT", "0")[0] == '1';
    struct boot_record record = {running, !running, 0};
    if (permanent != BOOT_UPGRADE_TEST || fchmod(image, 0755)) return -EINVAL;
    return boot_write(setting("WAYPOST_SLOTS", "."), &record);
}

/* --- the program around the port -------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_requested;

static void on_signal(int number) {
    (void)number;
    stop_requested = 1;
}

static size_t measure(void *context, char *json, size_t size) {
    (void)context;
    int length = snprintf(json, size, "\"uptime_s\":%u", (unsigned)(k_uptime_get_32() / 1000));
    return length > 0 && (size_t)length < size ? (size_t)length : 0;
}

static const char *text_of(const char *name) {
    const char *path = setting(name, NULL);
    if (!path) return NULL;
    FILE *file = fopen(path, "r");
    char *text = calloc(1, KEY_BYTES_MAX);
    if (!file || !text || !fread(text, 1, KEY_BYTES_MAX - 1, file)) fail_setting(name, "cannot be read");
    fclose(file);
    return text;
}

int main(void) {
    struct zephyr_settings settings = {
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
    if (zephyr_begin(&settings)) return 2;
    unsigned watchdog_s = number_of("WAYPOST_WATCHDOG_S", 30);
    int ended;
    while (!(ended = zephyr_step())) {
        alarm(watchdog_s);
        if (stop_requested) zephyr_stop();
        usleep(STEP_US);
    }
    return ended > 0 ? 0 : 1;
}
