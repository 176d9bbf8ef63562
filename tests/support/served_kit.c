/* served_kit.c - see served_kit.h. */
#include "support/served_kit.h"
#include "support/sandbox.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void must(int result, const char *what)
{
    if (result >= 0) return;
    printf("    %s: %s\n", what, tsr_errmsg());
    sandbox_stop();
}

void served_kit_open(struct kit *k, const char *path, const char *const *options)
{
    struct tsr_config *cfg = kit_config(options);
    must(tsr_config_set(cfg, "owner", "daemon"), "owner");
    must(tsr_config_set(cfg, "server_socket", path), "server_socket");
    kit_open_config(k, cfg);
    tsr_config_close(cfg);
}

/* In the child: serves until it is told to stop. */
static void serve(struct served *s, const char *const *options, int ready)
{
    struct kit k;
    struct tsr_server *server;
    char disk[512];
    sigset_t stop;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when the test aborts */
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    snprintf(disk, sizeof disk, "%s/disk", s->dir.path);
    struct tsr_config *cfg = kit_config(options);
    must(tsr_config_set(cfg, "owner", "embedded"), "owner");
    must(tsr_config_set(cfg, "disk_path", disk), "disk_path");
    must(tsr_config_set(cfg, "disk_size", "64M"), "disk_size");
    must(tsr_config_set(cfg, "disk_segment_size", "4M"), "disk_segment_size");
    must(tsr_config_set(cfg, "server_socket", s->path), "server_socket");
    kit_open_config(&k, cfg);
    must(tsr_server_open(&server, k.cache, cfg), "server");
    if (write(ready, "x", 1) != 1) _exit(1);
    int signal;
    sigwait(&stop, &signal);
    tsr_server_close(server);
    kit_close(&k);
    tsr_config_close(cfg);
    _exit(0);
}

void served_start(struct served *s, const char *const *options)
{
    int ready[2];
    char byte;
    if (!s->path[0]) {
        tmpdir_init(&s->dir);
        snprintf(s->path, sizeof s->path, "%.80s/s/sock", s->dir.path);
    }
    must(pipe(ready), "pipe");
    fflush(stdout);
    s->pid = fork();
    if (s->pid == 0) serve(s, options, ready[1]);
    close(ready[1]);
    must(read(ready[0], &byte, 1) == 1 ? 0 : -1, "the server does not start");
    close(ready[0]);
}

void served_stop(struct served *s, int signal)
{
    kill(s->pid, signal);
    kill(s->pid, SIGCONT);
    waitpid(s->pid, NULL, 0);
}

void served_end(struct served *s)
{
    tmpdir_fini(&s->dir);
}
