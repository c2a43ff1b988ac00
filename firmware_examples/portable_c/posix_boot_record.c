/* The file `boot`: "kept trial starts", such as "0 - 0", or "0 1 2" in the second start of slot 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "posix.h"

enum { PATH_BYTES = 4096 };

int boot_read(const char *folder, struct boot_record *record) {
    char path[PATH_BYTES], kept, trial;
    unsigned starts;
    snprintf(path, sizeof path, "%s/boot", folder);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    int fields = fscanf(file, "%c %c %u", &kept, &trial, &starts);
    fclose(file);
    if (fields != 3 || (kept != '0' && kept != '1') || (trial != '0' && trial != '1' && trial != '-') || starts > 99)
        return errno = EINVAL, -1;
    *record = (struct boot_record){kept - '0', trial == '-' ? -1 : trial - '0', (int)starts};
    return 0;
}

int boot_write(const char *folder, const struct boot_record *record) {
    char path[PATH_BYTES], made[PATH_BYTES], text[32];
    int length = snprintf(text, sizeof text, "%d %c %d\n", record->kept,
                          record->trial < 0 ? '-' : (char)('0' + record->trial), record->starts);
    snprintf(path, sizeof path, "%s/boot", folder);
    snprintf(made, sizeof made, "%s/boot.new", folder);
    int file = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return -1;
    int written = write(file, text, (size_t)length) == length && !fsync(file);
    close(file);
    if (!written || rename(made, path)) return -1;
    int directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return -1;
    written = !fsync(directory);
    close(directory);
    return written ? 0 : -1;
}
