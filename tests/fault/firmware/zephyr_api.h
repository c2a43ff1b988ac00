/*
 * Declarations of Zephyr 4.1 that `firmware_examples/zephyr/src/zephyr_port.c` uses, written after its headers
 * (net/socket.h, net/tls_credentials.h, fs/nvs.h, storage/flash_map.h, drivers/flash.h, dfu/mcuboot.h, kernel.h).
 * zephyr_host.c plays them on this machine.
 */
#ifndef ZEPHYR_API_H
#define ZEPHYR_API_H

#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/* kernel.h, sys/reboot.h, random/random.h */
typedef long atomic_t;
typedef long atomic_val_t;
bool atomic_cas(atomic_t *target, atomic_val_t old_value, atomic_val_t new_value);
atomic_val_t atomic_get(const atomic_t *target);
atomic_val_t atomic_set(atomic_t *target, atomic_val_t value);
struct k_work;
typedef void (*k_work_handler_t)(struct k_work *work);
struct k_work { k_work_handler_t handler; };
struct k_work_q { int is_started; };
struct k_work_queue_config;
typedef char k_thread_stack_t;
#define K_THREAD_STACK_DEFINE(name, size) static k_thread_stack_t name[size]
#define K_THREAD_STACK_SIZEOF(name) sizeof(name)
#define CONTAINER_OF(at, type, field) ((type *)(void *)((char *)(at) - offsetof(type, field)))
void k_work_init(struct k_work *work, k_work_handler_t handler);
void k_work_queue_init(struct k_work_q *queue);
void k_work_queue_start(struct k_work_q *queue, k_thread_stack_t *stack, size_t stack_size, int prio,
                        const struct k_work_queue_config *cfg);
int k_work_submit_to_queue(struct k_work_q *queue, struct k_work *work);
uint32_t k_uptime_get_32(void);
uint32_t sys_rand32_get(void);
#define SYS_REBOOT_COLD 1
void sys_reboot(int type) __attribute__((__noreturn__));

/* net/socket.h, net/tls_credentials.h */
#define zsock_addrinfo addrinfo
#define ZSOCK_MSG_DONTWAIT 0x40
#define IPPROTO_TLS_1_2 258
#define SOL_TLS 282
#define TLS_SEC_TAG_LIST 1
#define TLS_HOSTNAME 2
#define TLS_PEER_VERIFY 5
#define TLS_PEER_VERIFY_REQUIRED 2
int zsock_getaddrinfo(const char *host, const char *service, const struct zsock_addrinfo *hints, struct zsock_addrinfo **res);
void zsock_freeaddrinfo(struct zsock_addrinfo *ai);
int zsock_socket(int family, int type, int proto);
int zsock_close(int sock);
int zsock_connect(int sock, const struct sockaddr *addr, socklen_t addrlen);
ssize_t zsock_send(int sock, const void *buf, size_t len, int flags);
ssize_t zsock_recv(int sock, void *buf, size_t max_len, int flags);
int zsock_setsockopt(int sock, int level, int optname, const void *optval, socklen_t optlen);
typedef int sec_tag_t;
enum tls_credential_type {
    TLS_CREDENTIAL_NONE,
    TLS_CREDENTIAL_CA_CERTIFICATE,
    TLS_CREDENTIAL_PUBLIC_CERTIFICATE,
    TLS_CREDENTIAL_PRIVATE_KEY,
};
int tls_credential_add(sec_tag_t tag, enum tls_credential_type type, const void *cred, size_t credlen);

/* drivers/flash.h, storage/flash_map.h, fs/nvs.h */
struct device { int number; };
struct flash_pages_info { off_t start_offset; size_t size; uint32_t index; };
int flash_get_page_info_by_offs(const struct device *dev, off_t offset, struct flash_pages_info *info);
struct flash_area { uint8_t fa_id; off_t fa_off; size_t fa_size; const struct device *fa_dev; };
extern const struct device host_flash;
#define slot1_partition 1
#define storage_partition 2
#define FIXED_PARTITION_ID(label) label
#define FIXED_PARTITION_OFFSET(label) 0
#define FIXED_PARTITION_SIZE(label) (1 << 20)
#define FIXED_PARTITION_DEVICE(label) (&host_flash)
int flash_area_open(uint8_t id, const struct flash_area **fa);
int flash_area_read(const struct flash_area *fa, off_t off, void *dst, size_t len);
int flash_area_write(const struct flash_area *fa, off_t off, const void *src, size_t len);
int flash_area_erase(const struct flash_area *fa, off_t off, size_t len);
uint32_t flash_area_align(const struct flash_area *fa);
uint8_t flash_area_erased_val(const struct flash_area *fa);
struct nvs_fs { off_t offset; uint16_t sector_size; uint16_t sector_count; const struct device *flash_device; };
int nvs_mount(struct nvs_fs *fs);
ssize_t nvs_write(struct nvs_fs *fs, uint16_t id, const void *data, size_t len);
ssize_t nvs_read(struct nvs_fs *fs, uint16_t id, void *data, size_t len);

/* dfu/mcuboot.h */
#define BOOT_UPGRADE_TEST 0
bool boot_is_img_confirmed(void);
int boot_write_img_confirmed(void);
int boot_request_upgrade(int permanent);
ssize_t boot_get_trailer_status_offset(size_t area_size);

#endif
