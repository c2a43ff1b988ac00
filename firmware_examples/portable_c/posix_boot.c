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

enum { STARTS_MAX = 3, WATCHDOG_S = 120, PAUSE_S = 1, PATH_BYTES = 4096 };

static volatile sig_atomic_t stop_requested;
static volatile pid_t child;

static void on_signal(int number) {
    stop_requested = number;
    if (child > 0) kill(child, number);
}

/* Return the slot to start now. A start on trial is on disk before it begins; where that fails, as on a full disk, the kept
 * program runs. -1: the record cannot be read. */
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
    if (boot_write(folder, &record)) {
        perror("boot: no trial now");
        return record.kept;
    }
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

/* Start a program; a signal that comes meanwhile is for it too. */
static int fork_program(const char *folder, int slot, unsigned watchdog_s) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    child = fork();
    if (!child) {
        signal(SIGTERM, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        start(folder, slot, watchdog_s);
    }
    if (child > 0 && stop_requested) kill(child, SIGTERM);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return child < 0 ? -1 : 0;
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
        if (fork_program(folder, slot, watchdog_s)) return 1;
        while (waitpid(child, &status, 0) < 0) continue;
        child = 0;
        if (stop_requested || is_final(status, is_trial)) return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_RESTART) sleep(PAUSE_S);
    }
}
