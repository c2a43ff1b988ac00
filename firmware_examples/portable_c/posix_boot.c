/*
 * Boot loader of a computer: it starts the program in one of two slots, and goes back from one that does not confirm.
 *
 *     waypost-boot FOLDER
 *
 * FOLDER has the programs `slot0` and `slot1`. A program on trial has three starts; each has a watchdog (SIGALRM).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "posix.h"

enum { STARTS_MAX = 3, WATCHDOG_S = 30, PAUSE_S = 1, PATH_BYTES = 4096 };

static volatile sig_atomic_t stop_requested;
static volatile pid_t child;

static void on_signal(int number) {
    stop_requested = number;
    if (child > 0) kill(child, number);
}

/* Return the slot to start now; its start is on disk before it begins. -1: the record cannot be read or written. */
static int choose_slot(const char *folder) {
    struct boot_record record = {0, -1, 0};
    if (boot_read(folder, &record) && errno != ENOENT) return -1; /* ENOENT: the first start ever */
    if (record.trial < 0) return record.kept;
    if (record.starts >= STARTS_MAX) {
        fprintf(stderr, "boot: no confirmation in %d starts, back to slot %d\n", STARTS_MAX, record.kept);
        record.trial = -1;
        record.starts = 0;
    } else {
        record.starts++;
    }
    if (boot_write(folder, &record)) return -1;
    return record.trial < 0 ? record.kept : record.trial;
}

static void start(const char *folder, int slot, unsigned watchdog_s) {
    char path[PATH_BYTES], *arguments[] = {path, NULL};
    snprintf(path, sizeof path, "%s/slot%d", folder, slot);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("WAYPOST_SLOTS", folder, 1);
    setenv("WAYPOST_SLOT", slot ? "1" : "0", 1);
    alarm(watchdog_s); /* it goes on over exec: also a program that never feeds it ends */
    execv(path, arguments);
    perror(path);
    _exit(127);
}

/* Return whether the end of a program ends the boot loader too: stopped, or an error that a restart does not mend. */
static int is_final(int status, int is_trial) {
    if (!WIFEXITED(status) || WEXITSTATUS(status) == EXIT_RESTART) return 0;
    return WEXITSTATUS(status) == 0 || !is_trial;
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: waypost-boot FOLDER\n");
        return 2;
    }
    const char *folder = arguments[1], *watchdog = getenv("WAYPOST_WATCHDOG_S");
    unsigned watchdog_s = watchdog ? (unsigned)strtoul(watchdog, NULL, 10) : WATCHDOG_S;
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    for (;;) {
        int slot = choose_slot(folder), status;
        if (slot < 0) {
            perror(folder);
            return 1;
        }
        struct boot_record record;
        int is_trial = !boot_read(folder, &record) && record.trial == slot;
        child = fork();
        if (!child) start(folder, slot, watchdog_s);
        if (child < 0) return 1;
        if (stop_requested) kill(child, SIGTERM);
        while (waitpid(child, &status, 0) < 0) continue;
        child = 0;
        if (stop_requested || is_final(status, is_trial)) return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_RESTART) sleep(PAUSE_S);
    }
}
